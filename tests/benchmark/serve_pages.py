"""Serves captured metrics pages on many ports, with counters that rise from one look to the next.

A program of its own, so that its time is not the measured process's:

    serve_pages.py ENGINE_PAGE SERVER_PAGE ADDRESSES

ADDRESSES is JSON. For each session null, or [host, port] of a page that is seen from a network
namespace of the session's own only. When all answer it prints JSON: for each session its engine's
port and a process in its namespace, or null. It ends when its standard input is closed.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import re
import socket
import struct
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from itertools import count
from pathlib import Path
from typing import NamedTuple

from aiohttp import web

type Address = tuple[str, int]

_SIOCSIFFLAGS, _IFF_UP = 0x8914, 0x1

#: A line of a counter or histogram; its value is the second group.
_COUNTER = re.compile(r"^([a-z]\S*_(?:total|count|sum|bucket)(?:\{.*\})?) (\S+)$", re.MULTILINE)


def rising(page: str) -> Callable[[int], str]:
    """The page as it is at each look: everything counted has grown by a hundredth."""

    @cache
    def at(look: int) -> str:
        return _COUNTER.sub(lambda m: f"{m[1]} {float(m[2]) * (1 + look / 100)}", page)

    return at


def application(pages: Mapping[int, Callable[[int], str]]) -> web.Application:
    """Answers on each port with its page, compressed for who can read that, as engines do."""
    looks = {port: count() for port in pages}

    async def metrics(request: web.Request) -> web.Response:
        port = request.transport.get_extra_info("sockname")[1] if request.transport else 0
        response = web.Response(text=pages[port](next(looks[port])))
        response.enable_compression()
        return response

    app = web.Application()
    app.router.add_get("/metrics", metrics)
    return app


class Inside(NamedTuple):
    """A process that is in a namespace, and so keeps it, for as long as the socket is open."""

    pid: int
    keeper: socket.socket


def listening(address: Address) -> socket.socket:
    return socket.create_server(address)


def listening_inside(address: Address) -> tuple[socket.socket, Inside]:
    """A socket in a network namespace of its own, and what keeps that."""
    ours, theirs = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        ours.close()
        os.unshare(os.CLONE_NEWNET)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as plain:
            fcntl.ioctl(plain, _SIOCSIFFLAGS, struct.pack("16sh", b"lo", _IFF_UP))
        with listening(address) as listener:
            socket.send_fds(theirs, [b"1"], [listener.fileno()])
        theirs.recv(1)  # Nothing comes, until the other side is gone.
        os._exit(0)
    theirs.close()
    _, fds, _, _ = socket.recv_fds(ours, 1, 1)
    return socket.socket(fileno=fds[0]), Inside(pid, ours)


async def serve(engine_page: str, server_page: str, addresses: Sequence[Address | None]) -> None:
    inside = [listening_inside(address) if address else None for address in addresses]
    engines = [listening(("127.0.0.1", 0)) for _ in addresses]
    ports = [engine.getsockname()[1] for engine in engines]
    pages = dict.fromkeys(ports, rising(engine_page))
    pages |= dict.fromkeys((address[1] for address in addresses if address), rising(server_page))
    runner = web.AppRunner(application(pages), access_log=None)
    await runner.setup()
    for listener in (*engines, *(server[0] for server in inside if server)):
        await web.SockSite(runner, listener).start()
    pids = [server and server[1].pid for server in inside]
    print(json.dumps(list(zip(ports, pids, strict=True))), flush=True)
    await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    engine, server = (Path(path).read_text(encoding="utf-8") for path in sys.argv[1:3])
    addresses = [address and (address[0], address[1]) for address in json.loads(sys.argv[3])]
    asyncio.run(serve(engine, server, addresses))
