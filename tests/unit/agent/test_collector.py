from __future__ import annotations

import asyncio
import errno
import json
import logging
import os
import shutil
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path, PurePosixPath
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from ai.backend.kvcache.agent import pages, plan_file, usages
from ai.backend.kvcache.agent.collector import Collector
from ai.backend.kvcache.agent.netns import InsidePage
from ai.backend.kvcache.agent.pids import ContainerPids
from ai.backend.kvcache.engine.loopback import session_loopback

NAMESPACE = "808bcad421012905df918cc88de71999"
PAGE = "vllm-0.32_lmcache-mp-0.5.6_engine.prom"


class FakeKernel(dict[str, Any]):
    """A kernel object of the agent's registry, as far as it is read."""

    service_ports: list[dict[str, Any]]
    resource_spec: Any


@pytest.fixture
async def engine(data: Path) -> AsyncIterator[int]:
    """A real HTTP server with a captured page; the port."""

    async def metrics(request: web.Request) -> web.Response:
        return web.Response(text=(data / "engine-pages" / PAGE).read_text())

    app = web.Application()
    app.router.add_get("/metrics", metrics)
    async with TestServer(app) as server:
        assert server.port is not None
        yield server.port


@pytest.fixture
async def silent_port() -> AsyncIterator[int]:
    """A port that accepts and never answers."""
    server = await asyncio.start_server(lambda r, w: asyncio.sleep(60), "127.0.0.1", 0)
    yield server.sockets[0].getsockname()[1]
    server.close()


@pytest.fixture
async def collector(tmp_path: Path) -> AsyncIterator[Collector]:
    collector = Collector(tmp_path / "scratches")
    yield collector
    await collector.close()


@pytest.fixture
def register(tmp_path: Path) -> Callable[..., dict[str, FakeKernel]]:
    """Makes a registry of one kernel with KV cache, and its files on disk."""
    kv = tmp_path / "kv"
    (kv / "ns" / NAMESPACE).mkdir(parents=True)
    (kv / "ns" / NAMESPACE / "m@1@0@3e8@half.data").write_bytes(b"0" * 4096)

    def make(
        port: int | None, *, kv_cache: bool | None = True, engine: str = "lmcache-posix"
    ) -> dict[str, FakeKernel]:
        config = tmp_path / "scratches/k1/config/kvcache"
        if kv_cache is not None:
            config.mkdir(parents=True, exist_ok=True)
            plan = {
                "kv_cache": kv_cache,
                "engine": engine,
                "namespace": {
                    "name": NAMESPACE,
                    "description": {"storage_format": "lmcache-fs"},
                },
                "storage": f"/kvcache/ns/{NAMESPACE}",
            }
            (config / "plan.json").write_text(json.dumps(plan))
        kernel = FakeKernel(container_id="c1", kernel_host="127.0.0.1")
        kernel.service_ports = [{"is_inference": False, "host_ports": (1,)}]
        if port is not None:
            kernel.service_ports.append({"is_inference": True, "host_ports": (port,)})
        kernel.resource_spec = SimpleNamespace(
            mounts=[
                SimpleNamespace(source=None, target=PurePosixPath("/tmp")),
                SimpleNamespace(source=kv, target=PurePosixPath("/kvcache")),
            ]
        )
        return {"k1": kernel}

    return make


#: One file of a block, with 4,096 bytes, by an adapter that uses ordinary files.
FOLDER = {
    "kvcache_transport": 1,
    "kvcache_mem": 4096,
    "kvcache_files": 1,
    "kvcache_blocks": 1,
    "kvcache_unfinished": 0,
}


async def values(collector: Collector, kernels: dict[str, Any]) -> dict[str, float]:
    """Without the age of the oldest block, which is never twice the same."""
    measured = await collector.collect(kernels, ["c1"])
    found = {str(m.key): float(m.per_container["c1"].value) for m in measured}
    found.pop("kvcache_oldest_seconds", None)
    return found


async def test_engine_and_folder(collector: Collector, register: Any, engine: int) -> None:
    assert await values(collector, register(engine)) == {
        "kvcache_util": 92.835,
        "kvcache_engine_util": 0,
        "kvcache_pool_util": 0,
        "kvcache_loaded_tokens": 8448,
        "kvcache_computed_util": 7.165,
        "kvcache_first_token_p50": 0.175,
        "kvcache_first_token_p95": 0.45,
        "kvcache_saved_seconds": 0.884,
        **FOLDER,
    }


async def test_what_was_said_of_requests_stands(
    collector: Collector, register: Any, engine: int
) -> None:
    kernels = register(engine)
    first = await values(collector, kernels)
    # Nobody asked in between.
    second = await values(collector, kernels)
    assert second["kvcache_preempted"] == 0
    assert second["kvcache_util"] == first["kvcache_util"]
    assert second["kvcache_first_token_p50"] == first["kvcache_first_token_p50"]
    assert second["kvcache_saved_seconds"] == first["kvcache_saved_seconds"]


VLLM = """\
vllm:prompt_tokens_by_source_total{{source="external_kv_transfer"}} {loaded}
vllm:prompt_tokens_by_source_total{{source="local_cache_hit"}} 0
vllm:request_prefill_time_seconds_count 1
vllm:request_prefill_time_seconds_sum {prefill}
vllm:request_queue_time_seconds_sum {queue}
vllm:request_prompt_tokens_sum 3000
vllm:request_prefill_kv_computed_tokens_sum {computed}
vllm:inter_token_latency_seconds_count 100
vllm:inter_token_latency_seconds_sum 10
vllm:lmcache_mp_lookup_duration_seconds_sum {queue}
"""


async def test_saving_of_an_engine_that_was_started_again(
    collector: Collector, register: Any
) -> None:
    """As in the quick start: what loads is another engine than what computed."""
    text = VLLM.format(loaded=0, prefill=12.1, queue=0, computed=3000)

    async def metrics(request: web.Request) -> web.Response:
        return web.Response(text=text)

    app = web.Application()
    app.router.add_get("/metrics", metrics)
    async with TestServer(app) as server:
        kernels = register(server.port)
        assert (await values(collector, kernels))["kvcache_saved_seconds"] == 0
        await collector.collect({}, [])
        text = VLLM.format(loaded=2800, prefill=1.5, queue=1, computed=200)
        # 3,000 tokens in 12 s and 200 in 1.4 s, besides a step of 0.1 s each: 2,800 would have
        # taken 2,800 * 13.4 s / 3,200, and loading took 1 s.
        found = await values(collector, kernels)
        assert found["kvcache_saved_seconds"] == pytest.approx(10.725)


async def test_percentages_are_of_a_hundred(
    collector: Collector, register: Any, engine: int
) -> None:
    for measurement in await collector.collect(register(engine), ["c1"]):
        capacity = measurement.per_container["c1"].capacity
        assert capacity == (100 if measurement.unit_hint == "percent" else None)


async def test_size_of_a_capped_folder(collector: Collector, register: Any, tmp_path: Path) -> None:
    kernels = register(None)
    plan = tmp_path / "scratches/k1/config/kvcache/plan.json"
    plan.write_text(json.dumps({**json.loads(plan.read_text()), "folder_cap_bytes": 8192}))
    measured = await collector.collect(kernels, ["c1"])
    (size,) = [m.per_container["c1"] for m in measured if m.key == "kvcache_mem"]
    assert size.value == 4096
    assert size.capacity == 8192


async def test_interactive_session_has_its_folder_only(collector: Collector, register: Any) -> None:
    assert await values(collector, register(None)) == FOLDER


@pytest.mark.parametrize("kv_cache", [None, False])
async def test_sessions_without_are_not_measured(
    collector: Collector, register: Any, engine: int, kv_cache: bool | None
) -> None:
    assert await collector.collect(register(engine, kv_cache=kv_cache), ["c1"]) == []


async def test_other_containers_are_not_measured(
    collector: Collector, register: Any, engine: int
) -> None:
    assert await collector.collect(register(engine), ["c2"]) == []


async def test_engine_that_is_not_up(collector: Collector, register: Any) -> None:
    assert await values(collector, register(1)) == FOLDER


async def test_engine_that_hangs(
    collector: Collector, register: Any, silent_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "SCRAPE_TIMEOUT_SECONDS", 0.2)
    assert await values(collector, register(silent_port)) == FOLDER


async def test_page_without_end(
    collector: Collector, register: Any, engine: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "MAX_PAGE_BYTES", 1000)
    assert await values(collector, register(engine)) == FOLDER


async def test_namespace_is_not_walked_every_tick(
    collector: Collector, register: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernels = register(None)
    assert await values(collector, kernels) == FOLDER
    (tmp_path / "kv/ns" / NAMESPACE / "m@1@0@3e9@half.data").write_bytes(b"0" * 4)
    assert await values(collector, kernels) == FOLDER
    monkeypatch.setattr(usages, "USAGE_INTERVAL_SECONDS", 0.0)
    grown = {"kvcache_mem": 4100, "kvcache_files": 2, "kvcache_blocks": 2}
    assert await values(collector, kernels) == {**FOLDER, **grown}


async def test_age_of_the_oldest_block(collector: Collector, register: Any, tmp_path: Path) -> None:
    kernels = register(None)
    block = tmp_path / "kv/ns" / NAMESPACE / "m@1@0@3e8@half.data"
    os.utime(block, (0, time.time() - 1000))
    measured = await collector.collect(kernels, ["c1"])
    (age,) = [m.per_container["c1"].value for m in measured if m.key == "kvcache_oldest_seconds"]
    assert float(age) == pytest.approx(1000, abs=60)


async def test_transport_of_a_container_without_the_drivers_devices(
    collector: Collector, register: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process of this machine, which has no GPU, stands in for the container's first one."""

    async def pid_of(self: ContainerPids, container_id: str) -> int:
        return os.getpid()

    monkeypatch.setattr(ContainerPids, "of", pid_of)
    kernels = register(None, engine="lmcache-gds")
    assert await values(collector, kernels) == {**FOLDER, "kvcache_transport": 2}


async def test_namespace_that_vanished(collector: Collector, register: Any, tmp_path: Path) -> None:
    kernels = register(None)
    (tmp_path / "kv/ns" / NAMESPACE / "m@1@0@3e8@half.data").unlink()
    (tmp_path / "kv/ns" / NAMESPACE).rmdir()
    assert await values(collector, kernels) == {"kvcache_transport": 1}


async def test_damaged_plan(collector: Collector, register: Any, tmp_path: Path) -> None:
    kernels = register(None)
    (tmp_path / "scratches/k1/config/kvcache/plan.json").write_text("{")
    assert await collector.collect(kernels, ["c1"]) == []


def spoiled(tmp_path: Path, spoil: Callable[[Path], object]) -> Callable[[], None]:
    """Does something to k1's plan, and returns what undoes it."""
    config = tmp_path / "scratches/k1/config/kvcache"
    content = (config / "plan.json").read_text()
    spoil(config / "plan.json")

    def mend() -> None:
        shutil.rmtree(config, ignore_errors=True)
        config.mkdir()
        (config / "plan.json").write_text(content)

    return mend


def _replace_by_a_directory(plan: Path) -> None:
    plan.unlink()
    plan.mkdir()


SPOILERS = [
    pytest.param(lambda plan: plan.write_text(""), id="empty"),
    pytest.param(lambda plan: plan.write_text("{"), id="begun"),
    pytest.param(lambda plan: plan.write_text(plan.read_text()[:-1]), id="half-written"),
    pytest.param(lambda plan: plan.write_bytes(b"\xff\xfe"), id="no-text"),
    pytest.param(lambda plan: plan.rename(plan.with_name("new")), id="missing"),
    pytest.param(lambda plan: shutil.rmtree(plan.parent), id="without-directory"),
    pytest.param(_replace_by_a_directory, id="directory"),
]


class TestPlanThatCannotBeRead:
    """Once, and can be read at the next tick: the session has its figures from then on."""

    @pytest.mark.parametrize("error", [errno.EIO, errno.ESTALE, errno.EMFILE, errno.EACCES])
    async def test_error_of_the_file_system(
        self,
        collector: Collector,
        register: Any,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
        error: int,
    ) -> None:
        kernels = register(None)

        def fail(root: Path, path: Path) -> int:
            raise OSError(error, os.strerror(error))

        # A disk, or a file server, that fails: nothing here can be made to fail so.
        with monkeypatch.context() as failing:
            failing.setattr(plan_file, "open_file", fail)
            assert await collector.collect(kernels, ["c1"]) == []
            assert await collector.collect(kernels, ["c1"]) == []
        assert await values(collector, kernels) == FOLDER
        warnings = [r for r in caplog.records if r.levelno == logging.WARNING]
        assert sum("cannot be read" in r.getMessage() for r in warnings) == 1

    @pytest.mark.parametrize("spoil", SPOILERS)
    async def test_file_that_is_no_plan_for_now(
        self, collector: Collector, register: Any, tmp_path: Path, spoil: Callable[[Path], object]
    ) -> None:
        kernels = register(None)
        mend = spoiled(tmp_path, spoil)
        assert await collector.collect(kernels, ["c1"]) == []
        mend()
        assert await values(collector, kernels) == FOLDER

    @pytest.mark.parametrize("spoil", SPOILERS)
    async def test_later_it_takes_nothing(
        self, collector: Collector, register: Any, tmp_path: Path, spoil: Callable[[Path], object]
    ) -> None:
        kernels = register(None)
        assert await values(collector, kernels) == FOLDER
        spoiled(tmp_path, spoil)
        assert await values(collector, kernels) == FOLDER


async def test_folder_that_hangs(
    collector: Collector, register: Any, engine: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A hanging file server, which this machine does not have.
    monkeypatch.setattr(usages, "namespace_usage", lambda *_: time.sleep(0.5))
    monkeypatch.setattr(usages, "USAGE_WAIT_SECONDS", 0.05)
    measured = await values(collector, register(engine))
    assert "kvcache_mem" not in measured
    assert measured["kvcache_loaded_tokens"] == 8448


@pytest.mark.parametrize(
    "nonsense",
    [
        [],
        5,
        {"kv_cache": True},
        {"kv_cache": True, "namespace": None},
        {"kv_cache": True, "namespace": {"name": NAMESPACE}, "storage": 7},
        {"kv_cache": True, "namespace": {"name": 7, "description": {"storage_format": 1}}},
        {"kv_cache": True, "metrics": [7], "namespace": {"name": NAMESPACE, "description": {}}},
        {"kv_cache": True, "metrics": 7},
    ],
)
async def test_plan_that_its_session_wrote_over_harms_nobody_else(
    collector: Collector, register: Any, tmp_path: Path, engine: int, nonsense: object
) -> None:
    kernels = register(engine)
    config = tmp_path / "scratches/k2/config/kvcache"
    config.mkdir(parents=True)
    (config / "plan.json").write_text(json.dumps(nonsense))
    kernels["k2"] = FakeKernel(container_id="c2", kernel_host="127.0.0.1")
    measured = await collector.collect(kernels, ["c1", "c2"])
    found = {str(m.key): set(m.per_container) for m in measured}
    assert found["kvcache_util"] == {"c1"}
    assert found["kvcache_mem"] == {"c1"}


class TestPagesInside:
    """Pages of what listens in the container only. The namespace is entered in test_netns.py."""

    @pytest.fixture
    def asked(self, monkeypatch: pytest.MonkeyPatch, data: Path) -> list[tuple[int, InsidePage]]:
        asked: list[tuple[int, InsidePage]] = []
        text = (data / "engine-pages/vllm-0.32_lmcache-mp-0.5.6_server.prom").read_text()

        def read(pid: int, page: InsidePage, timeout: float, max_bytes: int) -> str:
            asked.append((pid, page))
            return text

        async def pid_of(self: object, container_id: str) -> int:
            return 4711

        monkeypatch.setattr(pages, "read_inside", read)
        monkeypatch.setattr(ContainerPids, "of", pid_of)
        return asked

    def add(self, tmp_path: Path, host: str, port: int) -> None:
        path = tmp_path / "scratches/k1/config/kvcache/plan.json"
        plan = json.loads(path.read_text())
        server = {"name": "lmcache-server", "host": host, "port": port, "path": "/admin"}
        path.write_text(json.dumps({**plan, "metrics": [server]}))

    async def test_is_read_beside_the_engines(
        self,
        collector: Collector,
        register: Any,
        tmp_path: Path,
        engine: int,
        asked: list[tuple[int, InsidePage]],
    ) -> None:
        kernels = register(engine)
        own = session_loopback("k1")
        self.add(tmp_path, own.host, own.ports[1])
        await values(collector, kernels)
        second = await values(collector, kernels)
        # Of the server's page; the other, of the engine's.
        assert second["kvcache_evicted_rate"] == 0
        assert second["kvcache_loaded_tokens"] == 8448
        # Its path is not for the plan to say.
        assert asked[0] == (4711, InsidePage(own.host, own.ports[1], "/metrics"))

    @pytest.mark.parametrize("host", ["127.0.0.1", "10.0.0.1", "169.254.169.254", "localhost", ""])
    async def test_session_cannot_lead_the_agent_elsewhere(
        self,
        collector: Collector,
        register: Any,
        tmp_path: Path,
        engine: int,
        asked: list[tuple[int, InsidePage]],
        host: str,
    ) -> None:
        kernels = register(engine)
        self.add(tmp_path, host, session_loopback("k1").ports[1])
        assert "kvcache_util" in await values(collector, kernels)
        assert asked == []
