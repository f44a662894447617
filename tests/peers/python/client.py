"""A stock NorFab client: `client.py INVENTORY NAME`, driven by JSON lines. See `CALLS`."""

import collections
import hashlib
import os
import sys
import time

import lines
from norfab.core.client import NFPClient
from norfab.core.inventory import NorFabInventory

path, name = sys.argv[1:3]
inventory = NorFabInventory(path=path)
client = NFPClient(inventory, inventory.broker["endpoint"], name)
futures = {}


def run_job(service, task, args=None, kwargs=None, workers="all", timeout=60):
    return client.run_job(service, task, args=args, kwargs=kwargs, workers=workers, timeout=timeout)


def submit_job(service, task, args=None, kwargs=None, workers="all", timeout=60, uuid=None):
    future = client.submit_job(service, task, uuid=uuid, args=args, kwargs=kwargs, workers=workers, timeout=timeout)
    futures[future.uuid] = future
    return future.uuid


def wait(uuid, timeout=60):
    return futures[uuid].result(timeout=timeout)


def run_many(service, task, count, args=None, kwargs=None, workers="any", timeout=120):
    """Submits `count` jobs at once: the seconds until all are done, and how many ended in which state."""
    start = time.perf_counter()
    jobs = [
        client.submit_job(service, task, args=args, kwargs=kwargs, workers=workers, timeout=timeout)
        for _ in range(count)
    ]
    end = time.time() + timeout
    for job in jobs:
        job.result(timeout=max(0.01, end - time.time()))
    seconds = time.perf_counter() - start
    states = collections.Counter(client.job_db.get_job(job.uuid)["status"] for job in jobs)
    return {"seconds": seconds, "states": states}


def submit_many(service, task, count, args=None, kwargs=None, workers="any", timeout=120):
    """Submits `count` jobs and does not wait for them: the seconds until the last one was taken."""
    start = time.perf_counter()
    for _ in range(count):
        client.submit_job(service, task, args=args, kwargs=kwargs, workers=workers, timeout=timeout)
    return time.perf_counter() - start


def submit_marked(service, task, ids, path, seconds, timeout):
    """Submits a job for each id, and gives the ids that were refused, with the reason."""
    refused = {}
    for uuid in ids:
        kwargs = {"mark": uuid, "path": path, "seconds": seconds}
        try:
            client.submit_job(service, task, uuid=uuid, kwargs=kwargs, workers="any", timeout=timeout)
        except Exception as error:
            refused[uuid] = str(error)
    return refused


def states(results=False):
    """All jobs by the database: id to state and first error, and whether a result says that it failed."""
    with client.job_db._transaction() as connection:
        rows = connection.execute("SELECT uuid, status, errors FROM jobs").fetchall()

    def failed(uuid):
        stored = client.job_db.get_job(uuid).get("result_data") if results else None
        return any(result.get("failed") for result in (stored or {}).values())

    return {row[0]: [row[1], (row[2] or "")[:200], failed(row[0])] for row in rows}


def wait_for_all(timeout=60):
    """Waits until no job is unfinished: how many are in which state, by the database."""
    end = time.time() + timeout
    while True:
        with client.job_db._transaction() as connection:
            rows = connection.execute("SELECT status, count(*) FROM jobs GROUP BY status").fetchall()
        states = {row[0]: row[1] for row in rows}
        if not set(states) - {"COMPLETED", "FAILED", "STALE"} or time.time() > end:
            return states
        time.sleep(0.1)


def run_one_by_one(service, task, count, args=None, kwargs=None, workers="any", timeout=60):
    """Runs `count` jobs, each after the last: the seconds that each took."""
    taken = []
    for _ in range(count):
        start = time.perf_counter()
        results = run_job(service, task, args, kwargs, workers, timeout)
        taken.append(time.perf_counter() - start)
        if not results or any(result["failed"] for result in results.values()):
            raise RuntimeError(f"a job failed: {results}")
    return taken


def job(uuid):
    """The row of the job in the client's database."""
    return client.job_db.get_job(uuid)


def events(uuid, timeout=10, until=None):
    """Events that were not taken yet, up to the one with event_type or message `until`, or to the job's end."""
    taken = []
    for event in futures[uuid].events(timeout=timeout):
        taken.append(event)
        if until is not None and until in (event.get("event_type"), event.get("message")):
            break
    return taken


def answer(uuid, input_id, value=None, worker=None, cancel=False):
    futures[uuid].send_response(input_id, value, worker=worker, cancel=cancel)


def mmi(service, task, kwargs=None, timeout=10):
    return client.mmi(service, task, kwargs=kwargs or {}, timeout=timeout)


def workers_seen(service="all"):
    """Sorted names of the workers that the broker lists."""
    listed = client.mmi("mmi.service.broker", "show_workers", kwargs={"service": service}, timeout=5)["results"]
    return sorted(w["name"] for w in listed if w["name"]) if isinstance(listed, list) else []


def wait_for_workers(names, timeout=60):
    """Waits until the broker lists all of `names`; returns what it lists at last."""
    end, seen = time.time() + timeout, []
    while time.time() < end:
        seen = workers_seen()
        if set(names) <= set(seen):
            return seen
        time.sleep(0.05)
    raise TimeoutError(f"the broker lists {seen}, not all of {sorted(names)}, after {timeout} s")


def fetch_file(url, timeout=60, **options):
    """The stock answer, with size and MD5 of the file that it left."""
    answered = dict(client.fetch_file(url, timeout=timeout, **options))
    content = answered.get("content")
    if isinstance(content, str) and os.path.isfile(content):
        with open(content, "rb") as file:
            data = file.read()
        answered.update(size=len(data), md5=hashlib.md5(data).hexdigest())
    return answered


CALLS = {
    call.__name__: call
    for call in (
        run_job,
        submit_job,
        wait,
        run_many,
        submit_many,
        submit_marked,
        states,
        wait_for_all,
        run_one_by_one,
        job,
        events,
        answer,
        mmi,
        workers_seen,
        wait_for_workers,
        fetch_file,
    )
}

lines.say(ready="client", name=name, endpoint=inventory.broker["endpoint"])
lines.serve(CALLS)
client.destroy()
lines.leave()
