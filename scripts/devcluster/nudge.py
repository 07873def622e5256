"""Keeps telling the manager that its loops have work to do.

The manager looks for work when something marks it as needed, and otherwise only every 30 or 60
seconds; these times are fixed in its code. On a cluster for tests nobody wants to wait that long
for a model service, so this program sets all marks, again and again. It is run by itself.
"""

from __future__ import annotations

import socket
import sys
import time

INTERVAL_SECONDS = 2.0

#: The database of Redis that the manager's scheduler uses.
_LIVE_DATABASE = 2

_DEPLOYING = ("initializing", "provisioning", "provisioned", "promoting", "finalizing", "draining")

MARKS = (
    "schedule:schedule",
    "schedule:check_precondition",
    "schedule:start",
    "schedule:terminate",
    "schedule:check_pulling_progress",
    "schedule:check_creating_progress",
    "schedule:check_terminating_progress",
    "schedule:detect_kernel_termination",
    *(f"schedule:group_{step}" for step in ("autoscale", "scaling", "rolling", "draining")),
    "deployment:check_replica",
    "deployment:destroying",
    *(f"deployment:deploying:deploying_{step}" for step in _DEPLOYING),
    "route:provisioning",
    "route:check_starting",
    "route:check_warming_up",
    "route:running",
    "route:health_check",
    "route:draining",
    "route:appproxy_sync",
)


def command(*words: str) -> bytes:
    """A command in Redis' wire format."""
    parts = [f"*{len(words)}\r\n".encode()]
    for word in words:
        encoded = word.encode()
        parts.append(b"$%d\r\n%b\r\n" % (len(encoded), encoded))
    return b"".join(parts)


def nudge_forever(host: str, port: int) -> None:
    set_marks = command("MSET", *(word for mark in MARKS for word in (mark, "1")))
    while True:
        try:
            with socket.create_connection((host, port), timeout=5.0) as redis:
                redis.sendall(command("SELECT", str(_LIVE_DATABASE)) + set_marks)
                redis.recv(4096)
        except OSError as error:
            print(f"Redis at {host}:{port} does not answer: {error}", flush=True)
        time.sleep(INTERVAL_SECONDS)


if __name__ == "__main__":
    nudge_forever(sys.argv[1], int(sys.argv[2]))
