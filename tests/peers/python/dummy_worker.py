"""A worker on the stock NFPWorker class with one task for each thing that a job can do on the wire."""

import hashlib
import time

from norfab.core.worker import Job, NFPWorker, Task
from norfab.models import Result


class DummyWorker(NFPWorker):
    """Serves the service that its inventory entry names."""

    def __init__(self, inventory, broker, worker_name, exit_event=None, init_done_event=None, log_level=None):
        service = inventory[worker_name]["service"]
        super().__init__(inventory, broker, service, worker_name, exit_event, log_level)
        self.settings = self.load_inventory()
        init_done_event.set()

    @Task(fastapi={"methods": ["POST"]})
    def ok(self, a: int, b: str = "bee") -> Result:
        """Return both arguments."""
        return Result(result={"a": a, "b": b})

    @Task(fastapi={"methods": ["POST"]})
    def slow(self, seconds: float) -> Result:
        """Take some time."""
        time.sleep(seconds)
        return Result(result=seconds)

    @Task(fastapi={"methods": ["POST"]})
    def marked(self, mark: str, path: str, seconds: float) -> Result:
        """Write down where an execution begins and ends."""

        def write(what):
            with open(path, "ab", buffering=0) as file:
                file.write(f"{what} {mark}\n".encode())

        write("begin")
        time.sleep(seconds)
        write("end")
        return Result(result=True)

    @Task(fastapi={"methods": ["POST"]})
    def fails(self) -> Result:
        """Return a result that says it failed."""
        return Result(result="partial", failed=True, errors=["first error", "second error"], messages=["a message"])

    @Task(fastapi={"methods": ["POST"]})
    def raises(self, text: str = "boom") -> Result:
        """Raise an exception."""
        raise RuntimeError(text)

    @Task(fastapi={"methods": ["POST"]})
    def not_json(self, kind: str) -> Result:
        """Return a value that JSON does not know, or not in the same shape."""
        values = {"set": {1, 2}, "bytes": b"\x00\xff", "nan": float("nan"), "bigint": 2**70, "intkey": {1: "one"}}
        return Result(result=values[kind])

    @Task(fastapi={"methods": ["POST"]})
    def inventory_seen(self) -> Result:
        """Return the inventory that the broker gave at the start."""
        return Result(result=self.settings)

    @Task(fastapi={"methods": ["POST"]})
    def ask(self, job: Job, question: str = "go on?", default: str = "no", timeout: int = 60) -> Result:
        """Ask the client and return its answer."""
        return Result(result=job.request_input(question, default=default, timeout=timeout, metadata={"kind": "text"}))

    @Task(fastapi={"methods": ["POST"]})
    def progress(self, job: Job) -> Result:
        """Send events: the fewest fields, all fields, each severity, and one that the worker refuses to send."""
        job.event("minimal")
        job.event(
            "all fields",
            status="scheduled",
            resource=["res-1", "res-2"],
            severity="WARNING",
            timestamp="my-own-timestamp",
            extras={"k": [1, {"z": None}]},
            timeout=33,
        )
        for severity in ("INFO", "DEBUG", "WARNING", "CRITICAL", "ERROR"):
            job.event(f"severity {severity}", severity=severity)
        job.event("never sent", severity="LOUD")
        job.event("unicode \u00fc\u2192\u65e5\u672c")
        return Result(result=True)

    @Task(fastapi={"methods": ["POST"]})
    def stream_bytes(self, job: Job, chunks: int = 3, size: int = 1000) -> Result:
        """Stream raw bytes and return their MD5."""
        digest = hashlib.md5()
        for number in range(chunks):
            data = bytes((number + position) % 256 for position in range(size))
            digest.update(data)
            job.stream(data)
        return Result(result={"md5": digest.hexdigest(), "size": chunks * size})

    @Task(fastapi={"methods": ["POST"]})
    def big(self, mb: int) -> Result:
        """Return a table of about `mb` megabytes."""
        row = {"interface": "GigabitEthernet0/0/1", "state": "up", "in": 1234567, "out": 7654321, "descr": "x" * 20}
        return Result(result=[dict(row, idx=index) for index in range(mb * 1_000_000 // 110)])

    @Task(fastapi={"methods": ["POST"]})
    def text(self, mb: int) -> Result:
        """Return a text of about `mb` megabytes."""
        return Result(result="interface up\n" * (mb * 1_000_000 // 14))
