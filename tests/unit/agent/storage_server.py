"""A storage proxy to ask, and etcd as far as it is asked for one."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Self

import attrs
from aiohttp import web

SECRET = "what-only-managers-know"


class Etcd:
    """Stands in for a client of etcd: the two calls that are made, with values set at will.

    tests/cluster has the real one.
    """

    def __init__(self, **entry: str) -> None:
        self.entry = entry
        self.hangs = False

    async def __aenter__(self) -> Self:
        if self.hangs:
            await asyncio.Event().wait()
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    async def get_prefix(self, prefix: str) -> Mapping[str, str]:
        assert prefix == "volumes/proxies/local"
        # Of a key that is not there the real one returns an empty mapping too.
        return self.entry


@attrs.define
class StorageProxy:
    """A real HTTP server. It answers as Backend.AI's, unless it is told to answer otherwise."""

    address: str = ""
    folders: dict[str, Path] = attrs.field(factory=dict)
    """Folder's id → path."""
    answer: Callable[[], web.Response] | None = None
    delay_seconds: float = 0.0
    asked: list[dict[str, Any]] = attrs.field(factory=list)
    """The body of each request."""

    async def mount(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.asked.append(body)
        await asyncio.sleep(self.delay_seconds)
        if self.answer is not None:
            return self.answer()
        if request.headers.get("X-BackendAI-Storage-Auth-Token") != SECRET:
            return web.Response(status=403)
        if body["volume"] != "volume1" or body["vfid"] not in self.folders:
            return web.Response(status=400)
        return web.json_response({"path": str(self.folders[body["vfid"]])})

    def etcd(self, **changes: str) -> Etcd:
        """etcd with this proxy's entry."""
        return Etcd(**{"manager_api": self.address, "secret": SECRET, **changes})


@asynccontextmanager
async def serve(tls: ssl.SSLContext | None = None) -> AsyncIterator[StorageProxy]:
    """Runs one on a free port."""
    proxy = StorageProxy()
    app = web.Application()
    app.router.add_get("/folder/mount", proxy.mount)
    # Handlers that still sleep end with the server.
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls).start()
    host, port = runner.addresses[0][:2]
    proxy.address = f"{'https' if tls else 'http'}://{host}:{port}"
    try:
        yield proxy
    finally:
        await runner.cleanup()
