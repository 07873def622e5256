"""What is answered where a part that is needed does not answer."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from threading import Event

import pytest
from ai.backend.common.etcd import AsyncEtcd, ConfigScopes
from ai.backend.common.types import HostPortPair
from ai.backend.manager.api.rest.types import WebRequestHandler
from ai.backend.manager.errors.common import ServiceUnavailable
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from ai.backend.kvcache.manager import plan_routes
from ai.backend.kvcache.manager.policy_store import PolicyStore
from ai.backend.kvcache.manager.services import PLANNER

# The manager's own way of marking a request.
pytestmark = pytest.mark.filterwarnings("ignore:It is recommended to use web.RequestKey")

type Client = TestClient[web.Request, web.Application]


@pytest.fixture
def busy() -> Iterator[Event]:
    """Until it is set, others are planned for."""
    event = Event()
    yield event
    event.set()


@pytest.fixture
async def client(busy: Event) -> AsyncIterator[Client]:
    @web.middleware
    async def signed(request: web.Request, handler: WebRequestHandler) -> web.StreamResponse:
        request["is_authorized"] = True
        return await handler(request)

    app = web.Application(middlewares=[signed])
    app[PLANNER] = ThreadPoolExecutor(max_workers=1)
    app[PLANNER].submit(busy.wait)
    app.router.add_post("/plan", plan_routes.make_plan)
    async with TestClient(TestServer(app)) as client:
        yield client


async def test_too_many_ask_for_plans(
    client: Client, busy: Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan_routes, "PLAN_TIMEOUT_SECONDS", 0.1)
    async with client.post("/plan", json={"model": "qwen3-8b"}) as response:
        assert response.status == HTTPStatus.SERVICE_UNAVAILABLE
        problem = await response.json()
    assert problem["msg"] == "others are waiting for their plans; ask again"
    busy.set()
    monkeypatch.undo()
    async with client.post("/plan", json={"model": "qwen3-8b"}) as response:
        assert response.status == HTTPStatus.OK


async def test_no_etcd() -> None:
    # Port 1 of TCP (tcpmux) is served by no machine of today.
    etcd = AsyncEtcd(HostPortPair("127.0.0.1", 1), "local", {ConfigScopes.GLOBAL: ""})
    with pytest.raises(ServiceUnavailable, match="etcd does not answer"):
        await PolicyStore(etcd).read()
