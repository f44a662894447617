"""Bare DEALER sockets that send whatever frames the test wants: `dealer.py`, driven by JSON lines.

A frame is a string, sent as UTF-8, or {"hex": "..."} for other bytes; frames that are not UTF-8 come back as hex too.
"""

import resource
import time

import lines
import zmq
from zmq.utils.monitor import recv_monitor_message

context = zmq.Context()
context.set(zmq.MAX_SOCKETS, 8192)
sockets = {}


def packed(frame):
    return bytes.fromhex(frame["hex"]) if isinstance(frame, dict) else frame.encode()


def unpacked(frame):
    try:
        return frame.decode("utf-8")
    except UnicodeDecodeError:
        return {"hex": frame.hex()}


def connect(socket, endpoint, identity=None, server_key=None):
    """Opens a DEALER under the test's name `socket`; with `server_key` over CURVE with fresh client keys."""
    dealer = context.socket(zmq.DEALER)
    dealer.linger = 0
    if identity is not None:
        dealer.setsockopt(zmq.IDENTITY, packed(identity))
    if server_key is not None:
        dealer.curve_publickey, dealer.curve_secretkey = zmq.curve_keypair()
        dealer.curve_serverkey = server_key.encode()
    dealer.connect(endpoint)
    sockets[socket] = dealer


def send(socket, frames):
    """Whether the message was taken. A socket whose handshake the broker refused takes nothing, and would wait for ever."""
    try:
        sockets[socket].send_multipart([packed(frame) for frame in frames], zmq.NOBLOCK)
    except zmq.Again:
        return False
    return True


def receive(socket, timeout=5):
    """Frames of the next message, or null once `timeout` seconds are over."""
    dealer = sockets[socket]
    if not dealer.poll(timeout * 1000):
        return None
    return [unpacked(frame) for frame in dealer.recv_multipart()]


def crowd(count, endpoint, frames, server_key=None, timeout=60):
    """Opens `count` sockets at once, sends the same message from each, and counts those that get an answer in time."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    names = [f"crowd-{number}" for number in range(count)]
    poller = zmq.Poller()
    for name in names:
        connect(name, endpoint, name, server_key)
        send(name, frames)
        poller.register(sockets[name], zmq.POLLIN)
    answered, end = 0, time.time() + timeout
    while answered < count and time.time() < end:
        for dealer, _ in poller.poll(1000):
            poller.unregister(dealer)
            answered += 1
    for name in names:
        close(name)
    return answered


def beats(endpoint, count, server_key=None):
    """Opens a socket that sends heartbeats, and waits for so many times their time-out: how often it was cut off meanwhile."""
    beat, patience = 100, 400
    dealer = context.socket(zmq.DEALER)
    dealer.linger = 0
    dealer.heartbeat_ivl, dealer.heartbeat_timeout, dealer.heartbeat_ttl = beat, patience, 2 * patience
    if server_key is not None:
        dealer.curve_publickey, dealer.curve_secretkey = zmq.curve_keypair()
        dealer.curve_serverkey = server_key.encode()
    reports = dealer.get_monitor_socket(zmq.EVENT_DISCONNECTED | zmq.EVENT_HANDSHAKE_SUCCEEDED)
    dealer.connect(endpoint)
    events = []
    end = time.time() + count * patience / 1000
    while time.time() < end:
        if reports.poll(beat):
            events.append(recv_monitor_message(reports)["event"])
    dealer.disable_monitor()
    dealer.close()
    assert events[:1] == [zmq.EVENT_HANDSHAKE_SUCCEEDED], events
    return events.count(zmq.EVENT_DISCONNECTED)


def close(socket):
    sockets.pop(socket).close()


lines.say(ready="dealer")
lines.serve({call.__name__: call for call in (connect, send, receive, crowd, beats, close)})
lines.leave()
