"""A stock NorFab worker: `worker.py INVENTORY NAME`. Its inventory entry names the service and so the class."""

import importlib
import sys
import threading

import lines
from norfab.core.inventory import NorFabInventory

STOCK = {
    "filesharing": ("norfab.workers.filesharing_worker.filesharing_worker", "FileSharingWorker"),
    "nornir": ("norfab.workers.nornir_worker.nornir_worker", "NornirWorker"),
    "fastapi": ("norfab.workers.fastapi_worker.fastapi_worker", "FastAPIWorker"),
}

path, name = sys.argv[1:3]
inventory = NorFabInventory(path=path)
service = inventory[name]["service"]
module, cls = STOCK.get(service, ("dummy_worker", "DummyWorker"))
exit_event, ready = threading.Event(), threading.Event()
lines.stop_on_request(exit_event)
worker = getattr(importlib.import_module(module), cls)(
    inventory=inventory,
    broker=inventory.broker["endpoint"],
    worker_name=name,
    exit_event=exit_event,
    init_done_event=ready,
)


def announce():
    ready.wait()
    lines.say(ready="worker", name=name, service=service, endpoint=inventory.broker["endpoint"])


threading.Thread(target=announce, daemon=True).start()
worker.work()
lines.leave()
