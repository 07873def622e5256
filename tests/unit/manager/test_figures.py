"""The manager's own client against servers that answer as Prometheus does, or do not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from ai.backend.common.clients.http_client import ClientPool, tcp_client_session_factory
from ai.backend.manager.clients.prometheus.client import PrometheusClient
from ai.backend.manager.clients.prometheus.fixed_query_builder import (
    ContainerLiveStatQueryBuilder,
    ContainerMetricQueryBuilder,
)
from aiohttp import web
from aiohttp.test_utils import TestServer

from ai.backend.kvcache.manager import figures
from ai.backend.kvcache.manager.figures import figures_of

A = "9b13d666-83f6-41bd-ad32-491fe42cb94a"
B = "82b827b2-3b83-4b31-836f-74bf8ae947a9"


class Prometheus:
    """What it is asked, and what it answers."""

    def __init__(self) -> None:
        self.queries: list[str] = []
        self.result: list[dict[str, Any]] = []
        self.seconds = 0.0

    async def query(self, request: web.Request) -> web.Response:
        self.queries.append(str((await request.post())["query"]))
        await asyncio.sleep(self.seconds)
        data = {"resultType": "vector", "result": self.result}
        return web.json_response({"status": "success", "data": data})


@pytest.fixture
async def connect() -> AsyncIterator[Callable[[str], PrometheusClient]]:
    pool = ClientPool(tcp_client_session_factory)
    yield lambda endpoint: PrometheusClient(
        endpoint,
        pool,
        container_metric_query_builder=ContainerMetricQueryBuilder("1m"),
        container_live_stat_query_builder=ContainerLiveStatQueryBuilder("1m"),
    )
    await pool.close()


@pytest.fixture
def prometheus() -> Prometheus:
    return Prometheus()


@pytest.fixture
async def client(
    prometheus: Prometheus, connect: Callable[[str], PrometheusClient]
) -> AsyncIterator[PrometheusClient]:
    app = web.Application()
    app.router.add_post("/api/v1/query", prometheus.query)
    async with TestServer(app) as server:
        yield connect(str(server.make_url("/api/v1/")))


def series(kernel_id: str, key: str, value: str) -> dict[str, Any]:
    return {
        "metric": {"kernel_id": kernel_id, "container_metric_name": key},
        "value": [1796000000.0, value],
    }


class TestAnswer:
    async def test_by_kernel(self, prometheus: Prometheus, client: PrometheusClient) -> None:
        prometheus.result = [
            series(A, "kvcache_util", "93.5"),
            series(A, "kvcache_mem", "54526706"),
            series(B, "kvcache_util", "0"),
        ]
        assert await figures_of(client, [A, B]) == {
            A: {"kvcache_util": 93.5, "kvcache_mem": 54526706.0},
            B: {"kvcache_util": 0.0},
        }

    async def test_one_query_for_all(
        self, prometheus: Prometheus, client: PrometheusClient
    ) -> None:
        await figures_of(client, [A, B])
        assert prometheus.queries == [
            "max by (kernel_id, container_metric_name)(backendai_container_utilization"
            '{container_metric_name=~"kvcache_.+",value_type="current",kernel_id=~"'
            + f'{A}|{B}"}})'
        ]

    async def test_of_none_nothing_is_asked(
        self, prometheus: Prometheus, client: PrometheusClient
    ) -> None:
        assert await figures_of(client, []) == {}
        assert prometheus.queries == []

    async def test_what_is_no_figure_is_left_out(
        self, prometheus: Prometheus, client: PrometheusClient
    ) -> None:
        """JSON has no word for some numbers, and the table none for a later version's figures."""
        prometheus.result = [
            series(A, "kvcache_util", "NaN"),
            series(A, "kvcache_load_rate", "+Inf"),
            series(A, "kvcache_of_tomorrow", "1"),
        ]
        assert await figures_of(client, [A]) == {}


class TestNoAnswer:
    async def test_nobody_listens(self, connect: Callable[[str], PrometheusClient]) -> None:
        # Port 1 of TCP (tcpmux) is served by no machine of today.
        assert await figures_of(connect("http://127.0.0.1:1/api/v1/"), [A]) == {}

    async def test_it_hangs(
        self,
        prometheus: Prometheus,
        client: PrometheusClient,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setattr(figures, "QUERY_TIMEOUT_SECONDS", 0.1)
        prometheus.seconds = 60
        assert await figures_of(client, [A]) == {}
