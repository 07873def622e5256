"""What answers in a session's stead is the user's, and may be anything.

Each fault is a real server's. It takes its session's figures for as long as it lasts, and nothing
else: no tick is late for it, no other session misses a figure, nothing is read of where it leads,
and no figure is false when it is over.
"""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
import os
import resource
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path, PurePosixPath
from types import SimpleNamespace
from typing import Any

import attrs
import pytest

from ai.backend.kvcache.agent import collector as collector_module
from ai.backend.kvcache.agent import pages, usages
from ai.backend.kvcache.agent.collector import Collector
from ai.backend.kvcache.agent.pids import ContainerPids
from ai.backend.kvcache.engine.loopback import session_loopback
from ai.backend.kvcache.folder.usage import Usage, namespace_usage

MIB = 2**20

#: Each session's folder holds one file of 4,096 bytes. These come whatever the engine does.
OF_THE_FOLDER = {
    "kvcache_transport",
    "kvcache_mem",
    "kvcache_files",
    "kvcache_blocks",
    "kvcache_unfinished",
    "kvcache_oldest_seconds",
}

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root enters network namespaces")

type Answer = Callable[[asyncio.StreamWriter], Awaitable[None]]
type Figures = Mapping[str, Mapping[str, float]]


def answer_with(content: bytes, *, status: str = "200 OK", head: str = "") -> Answer:
    async def answer(writer: asyncio.StreamWriter) -> None:
        writer.write(f"HTTP/1.1 {status}\r\n{head}Content-Length: {len(content)}\r\n\r\n".encode())
        writer.write(content)
        await writer.drain()

    return answer


@attrs.define
class Engine:
    """A real HTTP server: a captured page of vLLM with LMCache, until it is told otherwise."""

    page: str
    port: int = 0
    stored_bytes: int = 10**12
    """As if the engine had run for days."""
    fault: Answer | None = None
    asked: int = 0
    open: int = 0
    most_open: int = 0
    sent_bytes: int = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.asked += 1
        self.open += 1
        self.most_open = max(self.most_open, self.open)
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
            answer = asyncio.ensure_future((self.fault or self.healthy())(writer))
            hung_up = asyncio.ensure_future(reader.read())
            await asyncio.wait({answer, hung_up}, return_when=asyncio.FIRST_COMPLETED)
            answer.cancel()
            hung_up.cancel()
            await asyncio.gather(answer, hung_up, return_exceptions=True)
        self.open -= 1
        writer.close()

    def healthy(self) -> Answer:
        # The captured engine had stored nothing.
        name = "lmcache:num_remote_write_bytes_total"
        lines = [
            line.replace(" 0.0", f" {self.stored_bytes}") if line.startswith(name + "{") else line
            for line in self.page.splitlines(keepends=True)
        ]
        return answer_with("".join(lines).encode())


@pytest.fixture
async def start(data: Path) -> AsyncIterator[Callable[..., Awaitable[Engine]]]:
    page = (data / "engine-pages/vllm-0.32_lmcache-0.5.6_inprocess.prom").read_text()
    async with contextlib.AsyncExitStack() as stack:

        async def start_one(address: tuple[str, int] = ("127.0.0.1", 0)) -> Engine:
            engine = Engine(page)
            server = await asyncio.start_server(engine.serve, *address, backlog=1000)
            stack.callback(server.close)
            engine.port = server.sockets[0].getsockname()[1]
            return engine

        yield start_one


@pytest.fixture
async def collector(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Collector]:
    """With a page's time cut to a third."""
    monkeypatch.setattr(pages, "SCRAPE_TIMEOUT_SECONDS", 1.0)
    collector = Collector(tmp_path / "scratches")
    yield collector
    await collector.close()


class Kernel(dict[str, Any]):
    """A kernel object of the agent's registry, as far as it is read."""

    service_ports: list[dict[str, Any]]
    resource_spec: Any


@pytest.fixture
def kernels(tmp_path: Path) -> Callable[..., dict[str, Kernel]]:
    """Adds a kernel to a registry, and its files to the disk."""
    registry: dict[str, Kernel] = {}

    def add(name: str, port: int | None, **plan: Any) -> dict[str, Kernel]:
        namespace = f"{len(registry):032x}"
        folder = tmp_path / "kv"
        (folder / ".kvcache").mkdir(parents=True, exist_ok=True)
        (folder / "ns" / namespace).mkdir(parents=True)
        (folder / "ns" / namespace / "m@1@0@3e8@half.data").write_bytes(b"0" * 4096)
        config = tmp_path / "scratches" / name / "config/kvcache"
        config.mkdir(parents=True)
        whole_plan = {
            "kv_cache": True,
            "engine": "lmcache-posix",
            "namespace": {"name": namespace, "description": {"storage_format": "lmcache-fs"}},
            "storage": f"/kvcache/ns/{namespace}",
            **plan,
        }
        (config / "plan.json").write_text(json.dumps(whole_plan))
        kernel = Kernel(container_id=name, kernel_host="127.0.0.1")
        kernel.service_ports = [{"is_inference": True, "host_ports": (port,)}] if port else []
        mount = SimpleNamespace(source=folder, target=PurePosixPath("/kvcache"))
        kernel.resource_spec = SimpleNamespace(mounts=[mount])
        registry[name] = kernel
        return registry

    return add


async def tick(collector: Collector, kernels: Mapping[str, Kernel]) -> Figures:
    """Container → its figures."""
    figures: dict[str, dict[str, float]] = {name: {} for name in kernels}
    began = time.monotonic()
    for measurement in await collector.collect(kernels, list(kernels)):
        for container, measured in measurement.per_container.items():
            figures[container][str(measurement.key)] = float(measured.value)
    assert time.monotonic() - began < 2 * collector_module.TICK_SECONDS
    return figures


async def hangs(writer: asyncio.StreamWriter) -> None:
    await asyncio.sleep(3600)


async def hangs_up(writer: asyncio.StreamWriter) -> None:
    pass


def says(what: str) -> Answer:
    async def answer(writer: asyncio.StreamWriter) -> None:
        writer.write(what.encode())

    return answer


def drips(beginning: str) -> Answer:
    async def answer(writer: asyncio.StreamWriter) -> None:
        writer.write(beginning.encode())
        while True:
            writer.write(b"v")
            await writer.drain()
            await asyncio.sleep(0.05)

    return answer


def goes_on(beginning: str, part: str) -> Answer:
    async def answer(writer: asyncio.StreamWriter) -> None:
        writer.write(beginning.encode())
        while True:
            writer.write(part.encode() * (64_000 // len(part) + 1))
            await writer.drain()
            # This server shares its loop with the agent's side, which a flood would keep from it.
            await asyncio.sleep(0.01)

    return answer


OK = "HTTP/1.1 200 OK\r\n"
CHUNKED = f"{OK}Transfer-Encoding: chunked\r\n\r\n"
EVENT = b"vllm:num_preemptions_total 9\n"
BUCKET = "vllm:time_to_first_token_seconds_bucket"

FAULTS: Mapping[str, Answer] = {
    "hangs": hangs,
    "drips its head": drips(f"{OK}X-"),
    "drips its page": drips(f"{OK}Content-Length: 100000\r\n\r\n"),
    "drips behind its page": drips(f"{CHUNKED}2\r\nx\n\r\n0\r\nX-"),
    "says without end that it goes on": goes_on("", "HTTP/1.1 100 Continue\r\n\r\n"),
    "head without end": goes_on(OK, "X-Header: value\r\n"),
    "page without end": goes_on(CHUNKED, f"10000\r\n{'x' * 65_535}\n\r\n"),
    "line without end": goes_on(CHUNKED, f"10000\r\n{'x' * 65_536}\r\n"),
    "trailer without end": goes_on(f"{CHUNKED}2\r\nx\n\r\n0\r\n", "X-Trailer: value\r\n"),
    "hangs up": hangs_up,
    # The last number has lost digits.
    "hangs up in the middle": says(
        f"{OK}Content-Length: 1000\r\n\r\nlmcache:num_remote_write_bytes_total 1"
    ),
    "is no HTTP": says("SSH-2.0-OpenSSH_9.6\r\n"),
    "is not up yet": answer_with(EVENT, status="503 Service Unavailable"),
    "has nothing there": answer_with(EVENT, status="404 Not Found"),
    "has no content": says("HTTP/1.1 204 No Content\r\n\r\n"),
    "compresses unasked": answer_with(gzip.compress(EVENT), head="Content-Encoding: gzip\r\n"),
    "empty page": answer_with(b""),
    "another's page": answer_with(b"<html><body>Loading, please wait</body></html>"),
    "not UTF-8": answer_with(EVENT + b"\xff\xfe\n"),
    "binary": answer_with(bytes(range(256)) * 1000),
    "line that is no sample": answer_with(b"vllm:num_preemptions_total{ 9\n"),
    "counter that is no number": answer_with(b"vllm:num_preemptions_total NaN\n"),
    "counter that is infinite": answer_with(b"lmcache:num_remote_write_bytes_total +Inf\n"),
    "counters whose sum is infinite": answer_with(b"vllm:num_preemptions_total 1e308\n" * 3),
    "number of three megabytes": answer_with(b"vllm:num_preemptions_total " + b"9" * 3 * MIB),
    "bucket of no bound": answer_with(f"{BUCKET} 1\n".encode()),
    "bucket whose bound is no number": answer_with(f'{BUCKET}{{le="NaN"}} 1\n'.encode()),
    "bucket below all others": answer_with(f'{BUCKET}{{le="-Inf"}} 1\n'.encode()),
}


async def test_what_a_healthy_engine_says(
    collector: Collector, start: Any, kernels: Callable[..., dict[str, Kernel]]
) -> None:
    """What the faults below take away."""
    registry = kernels("k", (await start()).port)
    await tick(collector, registry)
    figures = (await tick(collector, registry))["k"]
    assert figures["kvcache_store_rate"] == 0
    assert {"kvcache_util", "kvcache_preempted", "kvcache_loaded_tokens"} < figures.keys()


@pytest.mark.parametrize("fault", FAULTS)
async def test_is_a_gap_and_nothing_else(
    collector: Collector, start: Any, kernels: Callable[..., dict[str, Kernel]], fault: str
) -> None:
    engine: Engine = await start()
    neighbour: Engine = await start()
    kernels("neighbour", neighbour.port)
    registry = kernels("k", engine.port)

    before = time.monotonic()
    await tick(collector, registry)
    read = time.monotonic()
    engine.fault = FAULTS[fault]
    faulty = await tick(collector, registry)
    assert faulty["k"].keys() == OF_THE_FOLDER
    assert faulty["neighbour"]["kvcache_store_rate"] == 0

    engine.fault = None
    engine.stored_bytes += 1000
    again = time.monotonic()
    figures = (await tick(collector, registry))["k"]
    after = time.monotonic()
    # A thousand bytes since it was last read: not in no time, and not all that it ever stored.
    assert 1000 / (after - before) - 0.001 <= figures["kvcache_store_rate"]
    assert figures["kvcache_store_rate"] <= 1000 / (again - read) + 0.001
    assert figures["kvcache_preempted"] == 0


async def test_engine_that_goes_and_comes_back(
    collector: Collector, start: Any, kernels: Callable[..., dict[str, Kernel]]
) -> None:
    engine: Engine = await start()
    registry = kernels("k", engine.port)
    await tick(collector, registry)
    registry["k"].service_ports[0]["host_ports"] = (1,)  # Nobody listens there.
    assert (await tick(collector, registry))["k"].keys() == OF_THE_FOLDER
    registry["k"].service_ports[0]["host_ports"] = (engine.port,)
    # Started again: it has stored less than it once had.
    engine.stored_bytes = 1000
    before = time.monotonic()
    figures = (await tick(collector, registry))["k"]
    assert "kvcache_store_rate" not in figures
    assert "kvcache_preempted" not in figures
    read = time.monotonic()
    engine.stored_bytes = 3000
    again = time.monotonic()
    rate = (await tick(collector, registry))["k"]["kvcache_store_rate"]
    after = time.monotonic()
    assert 2000 / (after - before) - 0.001 <= rate <= 2000 / (again - read) + 0.001


@pytest.mark.parametrize("is_compressed", [False, True])
async def test_large_page_is_not_taken_in(
    collector: Collector,
    start: Any,
    kernels: Callable[..., dict[str, Kernel]],
    is_compressed: bool,
) -> None:
    """50 MB as they are; or 1 GiB in 1 MiB, of which nothing is unpacked."""
    engine: Engine = await start()
    member = gzip.compress(b"\n" * 16 * MIB)
    part, parts = (member, 64) if is_compressed else (b"x" * 64 * 1000, 782)
    head = "Content-Encoding: gzip\r\n" if is_compressed else ""

    async def answer(writer: asyncio.StreamWriter) -> None:
        writer.write(f"{OK}{head}Content-Length: {len(part) * parts}\r\n\r\n".encode())
        for _ in range(parts):
            writer.write(part)
            await writer.drain()
            engine.sent_bytes += len(part)

    engine.fault = answer
    registry = kernels("k", engine.port)
    most_before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert (await tick(collector, registry))["k"].keys() == OF_THE_FOLDER
    grown_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - most_before
    # The agent takes in 4 MiB, and the sockets between them may hold several.
    assert engine.sent_bytes < 25 * MIB
    assert grown_kib * 1024 < 100 * MIB


async def test_nothing_is_read_where_it_leads(
    collector: Collector, start: Any, kernels: Callable[..., dict[str, Kernel]]
) -> None:
    engine: Engine = await start()
    elsewhere: Engine = await start()
    registry = kernels("k", engine.port)
    for status in ("301 Moved", "302 Found", "303 See Other", "307 Temporary", "308 Permanent"):
        head = f"Location: http://127.0.0.1:{elsewhere.port}/metrics\r\n"
        engine.fault = answer_with(EVENT, status=status, head=head)
        assert (await tick(collector, registry))["k"].keys() == OF_THE_FOLDER
    assert engine.asked == 5
    assert elsewhere.asked == 0


async def test_hanging_engines_are_not_asked_all_at_once(
    collector: Collector, start: Any, kernels: Callable[..., dict[str, Kernel]]
) -> None:
    hanging: Engine = await start()
    hanging.fault = hangs
    for number in range(200):
        kernels(f"hanging{number}", hanging.port)
    registry = kernels("healthy", (await start()).port)
    # 64 at a time, a second each: the last come after three.
    figures = await tick(collector, registry)
    assert figures["healthy"]["kvcache_loaded_tokens"] == 8448
    assert hanging.asked == 200
    # Of those that are given up the server hears a moment later.
    assert hanging.most_open <= 2 * pages.MAX_CONNECTIONS
    assert {tuple(sorted(found)) for name, found in figures.items() if name != "healthy"} == {
        tuple(sorted(OF_THE_FOLDER))
    }


async def test_more_hanging_engines_than_a_tick_has_time_for(
    tmp_path: Path,
    start: Any,
    kernels: Callable[..., dict[str, Kernel]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two have a turn in each tick, and the one that is healthy stands behind six."""
    monkeypatch.setattr(pages, "MAX_CONNECTIONS", 2)
    monkeypatch.setattr(pages, "SCRAPE_TIMEOUT_SECONDS", 60.0)
    monkeypatch.setattr(collector_module, "TICK_SECONDS", 1.5)
    hanging: list[Engine] = [await start() for _ in range(6)]
    for number, engine in enumerate(hanging):
        engine.fault = hangs
        kernels(f"k{number}", engine.port)
    registry = kernels("healthy", (await start()).port)
    collector = Collector(tmp_path / "scratches")
    ticks = [await tick(collector, registry) for _ in range(5)]
    is_read = ["kvcache_loaded_tokens" in figures["healthy"] for figures in ticks]
    # Six were asked before it in three ticks. From then on it is the first.
    assert is_read == [False, False, False, True, True]
    # It leaves its turn at once, so that two others have theirs besides, one behind the other.
    assert [engine.asked for engine in hanging] == [2, 2, 2, 2, 1, 1]
    # Whose turn is next and who does not hang any more is read.
    hanging[4].fault = None
    assert (await tick(collector, registry))["k4"]["kvcache_loaded_tokens"] == 8448
    await collector.close()


async def test_docker_that_hangs(
    collector: Collector,
    start: Any,
    kernels: Callable[..., dict[str, Kernel]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is asked for the process of a session that uses GPUDirect, and takes that figure only."""
    server = await asyncio.start_unix_server(lambda r, w: hangs(w), tmp_path / "docker.sock")
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/docker.sock")
    own = session_loopback("k")
    metrics = [{"name": "server", "host": own.host, "port": own.ports[1]}]
    registry = kernels("k", (await start()).port, engine="lmcache-gds", metrics=metrics)
    figures = (await tick(collector, registry))["k"]
    server.close()
    assert figures["kvcache_loaded_tokens"] == 8448
    assert figures["kvcache_mem"] == 4096
    assert "kvcache_transport" not in figures


async def test_fault_of_ours_takes_one_session(
    collector: Collector,
    start: Any,
    kernels: Callable[..., dict[str, Kernel]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """None is known, so one is made: the walk of the first session's folder."""

    def walk(folder: Path, namespace: str, storage_format: str) -> Usage:
        if int(namespace, 16) == 0:
            raise RuntimeError("not foreseen")
        return namespace_usage(folder, namespace, storage_format)

    monkeypatch.setattr(usages, "namespace_usage", walk)
    kernels("first", (await start()).port)
    figures = await tick(collector, kernels("second", (await start()).port))
    assert "kvcache_mem" not in figures["first"]
    assert figures["first"]["kvcache_loaded_tokens"] == 8448
    assert figures["second"]["kvcache_mem"] == 4096


@needs_root
class TestPagesInside:
    """The same of pages that are read in a container. This process' own network stands in for the
    container's; test_netns.py enters another one.
    """

    @pytest.fixture(autouse=True)
    def own_network(self, collector: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
        async def pid_of(self: ContainerPids, container_id: str) -> int:
            return os.getpid()

        monkeypatch.setattr(ContainerPids, "of", pid_of)
        monkeypatch.setattr(pages, "SCRAPE_TIMEOUT_SECONDS", 1.0)

    @staticmethod
    async def add(kernels: Any, start: Any, name: str) -> Engine:
        own = session_loopback(name)
        metrics = [{"name": "server", "host": own.host, "port": own.ports[1]}]
        kernels(name, None, metrics=metrics)
        engine: Engine = await start((own.host, own.ports[1]))
        return engine

    @pytest.mark.parametrize("fault", FAULTS)
    async def test_is_a_gap_and_nothing_else(
        self, collector: Collector, start: Any, kernels: Any, fault: str
    ) -> None:
        # Of another name each, since tests that run at the same time would meet at one address.
        name = f"fault{list(FAULTS).index(fault)}"
        server = await self.add(kernels, start, name)
        registry = kernels("other", None)
        before = time.monotonic()
        await tick(collector, registry)
        read = time.monotonic()
        server.fault = FAULTS[fault]
        assert (await tick(collector, registry))[name].keys() == OF_THE_FOLDER
        server.fault = None
        server.stored_bytes += 1000
        again = time.monotonic()
        rate = (await tick(collector, registry))[name]["kvcache_store_rate"]
        after = time.monotonic()
        assert 1000 / (after - before) - 0.001 <= rate <= 1000 / (again - read) + 0.001

    async def test_those_that_hang_do_not_take_the_threads(
        self, collector: Collector, start: Any, kernels: Any
    ) -> None:
        """As many as there are threads, each with a line that never ends."""
        for number in range(pages.MAX_INSIDE):
            server = await self.add(kernels, start, f"hanging{number}")
            server.fault = drips(f"{OK}X-")
        await self.add(kernels, start, "healthy")
        registry = kernels("other", None)
        for _ in range(3):
            figures = await tick(collector, registry)
            assert figures["healthy"]["kvcache_loaded_tokens"] == 8448
