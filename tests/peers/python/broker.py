"""A stock NorFab broker: `broker.py INVENTORY`. Says it is ready once it is bound."""

import os
import sys
import threading

import lines
import zmq.auth
from norfab.core.broker import NFPBroker
from norfab.core.inventory import NorFabInventory

inventory = NorFabInventory(path=sys.argv[1])
for folder in ("files", "logs"):
    os.makedirs(os.path.join(inventory.base_dir, "__norfab__", folder), exist_ok=True)
exit_event = threading.Event()
broker = NFPBroker(inventory.broker["endpoint"], exit_event, inventory)
public_key = None
if broker.broker_public_key_file:
    public_key = zmq.auth.load_certificate(broker.broker_public_key_file)[0].decode()
lines.stop_on_request(exit_event)
lines.say(ready="broker", name="NFPBroker", endpoint=inventory.broker["endpoint"], public_key=public_key)
broker.mediate()
lines.leave()
