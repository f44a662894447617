"""Drives a broker, any implementation of it, with bare DEALERs that speak NFP.

As many fake workers as asked for answer each POST at once, and one fake client keeps a window of jobs in flight. For a
job the broker receives two messages and sends three: the 202, the POST and the result. Workers and client are processes
of their own, so that on two cores the broker has one nearly to itself. Prints one line of JSON.
"""

import argparse
import json
import multiprocessing
import os
import resource
import time
import uuid

import zmq

parser = argparse.ArgumentParser()
parser.add_argument("--endpoint", required=True)
parser.add_argument("--server-key", help="the broker's CURVE key in Z85; without it the sockets are plain")
parser.add_argument("--broker-pid", type=int, required=True)
parser.add_argument("--workers", type=int, default=1)
parser.add_argument("--seconds", type=float, default=3)
parser.add_argument("--window", type=int, default=100)
parser.add_argument("--target", default="any")
options = parser.parse_args()

SERVICE = b"raw"
# 300 bytes of arguments: the size of a small command with its options.
BODY = json.dumps({"task": "echo", "kwargs": {"pad": "x" * 260}, "args": []}, separators=(",", ":")).encode()


def dealer(context, name):
    socket = context.socket(zmq.DEALER)
    socket.setsockopt(zmq.IDENTITY, name)
    socket.linger = 0
    socket.sndhwm = socket.rcvhwm = 100_000
    if options.server_key:
        socket.curve_publickey, socket.curve_secretkey = zmq.curve_keypair()
        socket.curve_serverkey = options.server_key.encode()
    socket.connect(options.endpoint)
    return socket


def serve(stop):
    context = zmq.Context()
    context.set(zmq.MAX_SOCKETS, 4096)
    poller, sockets = zmq.Poller(), []
    for number in range(options.workers):
        socket = dealer(context, b"fake-worker-%d" % number)
        socket.send_multipart([b"", b"NFPW01", b"0x01", SERVICE])
        poller.register(socket, zmq.POLLIN)
        sockets.append(socket)
    beat = time.time()
    while not stop.is_set():
        if time.time() - beat > 2:
            beat = time.time()
            for socket in sockets:
                socket.send_multipart([b"", b"NFPW01", b"0x02", SERVICE])
        for socket, _ in poller.poll(200):
            while True:
                try:
                    frames = socket.recv_multipart(zmq.NOBLOCK)
                except zmq.Again:
                    break
                if frames[2] == b"0x04":
                    client, job, body = frames[3], frames[5], frames[6]
                    socket.send_multipart([b"", b"NFPW01", b"0x05", client, b"", job, b"200", body])


def cpu_seconds(pid):
    with open(f"/proc/{pid}/stat") as stat:
        fields = stat.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def wait_for_workers(socket):
    end = time.time() + 90
    request = [b"", b"NFPC01", b"0x11", b"mmi.service.broker", b"all", b"m" * 32, b'{"task":"show_workers","kwargs":{}}']
    while time.time() < end:
        socket.send_multipart(request)
        listed = []
        for _ in range(2):  # every answer comes twice, as RESPONSE and as MMI
            if socket.poll(5000):
                listed = json.loads(socket.recv_multipart()[6])
        if sum(worker["service"] == SERVICE.decode() for worker in listed) >= options.workers:
            return
        time.sleep(0.1)
    raise SystemExit("the workers did not register")


def drive():
    socket = dealer(zmq.Context(), b"fake-client")
    wait_for_workers(socket)
    ids = [uuid.uuid4().hex.encode() for _ in range(4096)]
    target, posted = options.target.encode(), 0

    def post():
        nonlocal posted
        socket.send_multipart([b"", b"NFPC01", b"0x04", SERVICE, target, ids[posted % len(ids)], BODY])
        posted += 1

    jobs = refused = 0
    before, start = cpu_seconds(options.broker_pid), time.perf_counter()
    for _ in range(options.window):
        post()
    while time.perf_counter() < start + options.seconds:
        frames = socket.recv_multipart()
        if frames[5] == b"200":
            jobs += 1
            post()
        elif frames[5] != b"202":
            refused += 1
    seconds = time.perf_counter() - start
    cpu = cpu_seconds(options.broker_pid) - before
    print(json.dumps({"jobs": jobs, "refused": refused, "seconds": seconds, "broker_cpu_seconds": cpu}), flush=True)


# Each socket has several descriptors.
_, most = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
multiprocessing.set_start_method("fork")
stop = multiprocessing.Event()
workers = multiprocessing.Process(target=serve, args=(stop,), daemon=True)
workers.start()
drive()
stop.set()
workers.join(5)
