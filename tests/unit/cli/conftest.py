"""The client's other end: a server that answers over HTTP and keeps what it was asked."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from typing import Any

import attrs
import pytest
from ai.backend.client.config import set_config
from aiohttp import web

type Answer = tuple[int, Any]
type Answering = Answer | Callable[[dict[str, Any]], Answer]


@attrs.frozen
class Asked:
    """One request."""

    method: str
    path: str
    body: dict[str, Any]


@attrs.define
class Endpoint:
    """Stands where a manager does."""

    answers: dict[tuple[str, str], Answering] = attrs.field(factory=dict)
    """(method, path) → what is answered. All others are not found."""
    asked: list[Asked] = attrs.field(factory=list)
    """Without the client's question for the server's version."""

    async def handle(self, request: web.Request) -> web.Response:
        if (request.method, request.path) == ("GET", "/"):
            return web.json_response({"version": "v9.20250722", "manager": "26.4.16"})
        text = await request.text()
        asked = Asked(request.method, request.path, json.loads(text) if text else {})
        self.asked.append(asked)
        answering = self.answers.get((request.method, request.path), (404, {"title": "no route"}))
        status, body = answering(asked.body) if callable(answering) else answering
        return web.json_response(body, status=status)

    def sent(self, method: str, path: str) -> dict[str, Any]:
        """The body of the only request of this kind."""
        (asked,) = (a for a in self.asked if (a.method, a.path) == (method, path))
        return asked.body


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[web.Application], None]]:
    """Serves an application that the client is configured for."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    runners: list[web.AppRunner] = []

    def start(app: web.Application) -> None:
        runner = web.AppRunner(app)
        loop.run_until_complete(runner.setup())
        loop.run_until_complete(web.TCPSite(runner, "127.0.0.1", 0).start())
        runners.append(runner)
        thread.start()
        monkeypatch.setenv("BACKEND_ENDPOINT", f"http://127.0.0.1:{runner.addresses[0][1]}")
        monkeypatch.setenv("BACKEND_ENDPOINT_TYPE", "api")
        monkeypatch.setenv("BACKEND_ACCESS_KEY", "AKIA")
        monkeypatch.setenv("BACKEND_SECRET_KEY", "key")
        # The client keeps what it once read.
        set_config(None)

    yield start
    set_config(None)
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    for runner in runners:
        loop.run_until_complete(runner.cleanup())
    loop.close()


@pytest.fixture
def endpoint(serve: Callable[[web.Application], None]) -> Endpoint:
    endpoint = Endpoint()
    app = web.Application()
    app.router.add_route("*", "/{tail:.*}", endpoint.handle)
    serve(app)
    return endpoint
