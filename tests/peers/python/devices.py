"""Simulated network devices on SSH: `devices.py NAME=PLATFORM:PORT ...`. All take user and password `nornir`."""

import signal
import sys
import threading

import lines
from fakenos import FakeNOS

devices = {}
for word in sys.argv[1:]:
    name, _, place = word.partition("=")
    platform, _, port = place.partition(":")
    devices[name] = {"platform": platform, "port": int(port)}
network = FakeNOS(
    inventory={
        "default": {
            "username": "nornir",
            "password": "nornir",
            "server": {"plugin": "ParamikoSshServer", "configuration": {"address": "127.0.0.1", "timeout": 1}},
            "shell": {"plugin": "CMDShell", "configuration": {}},
        },
        "hosts": devices,
    }
)
stop = threading.Event()
lines.stop_on_request(stop)
signal.signal(signal.SIGTERM, lambda *_: stop.set())
network.start()
lines.say(ready="devices", devices=devices)
stop.wait()
lines.leave()
