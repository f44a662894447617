"""Stock workers forked from one parent, the way the stock launcher starts them: `fleet.py INVENTORY NAME...`."""

import sys
import threading
from multiprocessing import Event, Process

import lines
from dummy_worker import DummyWorker
from norfab.core.inventory import NorFabInventory
from norfab.core.nfapi import start_worker_process

path, names = sys.argv[1], sys.argv[2:]
inventory = NorFabInventory(path=path)
workers = []
for name in names:
    done = Event()
    arguments = (DummyWorker, inventory, inventory.broker["endpoint"], name, Event(), None, done)
    process = Process(target=start_worker_process, args=arguments, daemon=True)
    process.start()
    workers.append((process, done))
for _, done in workers:
    done.wait()
stop = threading.Event()
lines.stop_on_request(stop)
lines.say(ready="fleet", pids=[process.pid for process, _ in workers])
stop.wait()
for process, _ in workers:
    process.kill()
lines.leave()
