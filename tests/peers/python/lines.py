"""JSON lines on standard input and output: how a test drives a Python peer.

Standard output belongs to the protocol alone. What libraries print there would garble it, so it is moved to standard
error and the lines are written to a private copy of the descriptor.
"""

import json
import os
import sys
import threading

_OUT = os.fdopen(os.dup(1), "w", encoding="utf-8")
os.dup2(2, 1)
_LOCK = threading.Lock()


def say(**fields):
    """Writes one line."""
    with _LOCK:
        _OUT.write(json.dumps(fields, default=str, ensure_ascii=False) + "\n")
        _OUT.flush()


def requests():
    """Yields the requests that arrive until standard input ends, which it does when the test is gone."""
    for line in sys.stdin:
        if line.strip():
            yield json.loads(line)


def serve(calls):
    """Answers each request {"call": name, ...arguments} with {"result": ...} or {"error": text}, in order."""
    for request in requests():
        call = request.pop("call")
        if call == "stop":
            return
        try:
            say(result=calls[call](**request))
        except Exception as error:  # the test decides what an error means
            say(error=f"{type(error).__name__}: {error}")


def stop_on_request(event):
    """Sets `event` once the test says "stop" or is gone."""

    def wait():
        for request in requests():
            if request.get("call") == "stop":
                break
        event.set()

    threading.Thread(target=wait, daemon=True).start()


def leave(code=0):
    """Ends the process at once: threads that a stock peer leaves behind must not keep it alive."""
    sys.stderr.flush()
    os._exit(code)
