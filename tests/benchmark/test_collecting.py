"""What one tick costs the agent with 200 sessions. The mark: 2 s of one core.

Run with ``./scripts/test benchmark``. ``processor`` is the time of this process's threads on all
cores, ``wall`` what a clock shows; the engines are another process. In an ordinary tick every
session's pages are read; once a minute the agent also walks the namespaces, with 300 files each
here. Half of the sessions of the last case have LMCache's server in a network namespace besides.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from types import SimpleNamespace
from typing import Any

import attrs
import pytest
from ai.backend.agent.stats import ContainerMeasurement

from ai.backend.kvcache.agent import usages
from ai.backend.kvcache.agent.collector import Collector
from ai.backend.kvcache.agent.pids import ContainerPids
from ai.backend.kvcache.engine.loopback import session_loopback

SESSIONS = 200
FILES = 300
NAMESPACES = [f"{number:032x}" for number in range(SESSIONS)]

PAGES = Path(__file__).parents[1] / "data/engine-pages"
ENGINE_PAGE = PAGES / "vllm-0.32_lmcache-mp-0.5.6_engine.prom"
SERVER_PAGE = PAGES / "vllm-0.32_lmcache-mp-0.5.6_server.prom"

needs_root = pytest.mark.skipif(
    os.geteuid() != 0, reason="only root makes and enters network namespaces"
)


class Kernel(dict[str, Any]):
    """A kernel object of the agent's registry, as far as it is read."""

    service_ports: list[dict[str, Any]]
    resource_spec: Any


@attrs.frozen
class Node:
    """What the agent of a node with 200 sessions has before it."""

    scratches: Path
    kernels: dict[str, Kernel]
    pids: dict[str, int]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A KV folder with a namespace for each session."""
    folder = tmp_path_factory.mktemp("kv")
    (folder / ".kvcache").mkdir()
    for name in NAMESPACES:
        namespace = folder / "ns" / name
        namespace.mkdir(parents=True)
        for block in range(FILES):
            (namespace / f"m@1@0@{block:x}@half.data").write_bytes(b"0" * 64)
    return folder


@contextmanager
def _node(path: Path, folder: Path, with_server: Callable[[int], bool]) -> Iterator[Node]:
    kernels: dict[str, Kernel] = {}
    pids: dict[str, int] = {}
    own = [session_loopback(f"k{i}") if with_server(i) else None for i in range(SESSIONS)]
    addresses = json.dumps([o and (o.host, o.ports[1]) for o in own])
    script = Path(__file__).with_name("serve_pages.py")
    with subprocess.Popen(
        [sys.executable, script, ENGINE_PAGE, SERVER_PAGE, addresses],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as engines:
        assert engines.stdin is not None
        assert engines.stdout is not None
        for number, (port, pid) in enumerate(json.loads(engines.stdout.readline())):
            name, loopback = NAMESPACES[number], own[number]
            config = path / f"k{number}" / "config/kvcache"
            config.mkdir(parents=True)
            plan: dict[str, Any] = {
                "kv_cache": True,
                "engine": "lmcache-posix",
                "namespace": {"name": name, "description": {"storage_format": "lmcache-fs"}},
                "storage": f"/kvcache/ns/{name}",
            }
            if loopback is not None:
                endpoint = {"name": "server", "host": loopback.host, "port": loopback.ports[1]}
                plan["metrics"] = [endpoint]
                pids[f"c{number}"] = pid
            (config / "plan.json").write_text(json.dumps(plan))
            kernel = Kernel(container_id=f"c{number}", kernel_host="127.0.0.1")
            kernel.service_ports = [{"is_inference": True, "host_ports": (port,)}]
            mount = SimpleNamespace(source=folder, target=PurePosixPath("/kvcache"))
            kernel.resource_spec = SimpleNamespace(mounts=[mount])
            kernels[f"k{number}"] = kernel
        yield Node(path, kernels, pids)
        engines.stdin.close()


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory, folder: Path) -> Iterator[Node]:
    with _node(tmp_path_factory.mktemp("scratches"), folder, lambda number: False) as node:
        yield node


@pytest.fixture(scope="module")
def engines_and_servers(tmp_path_factory: pytest.TempPathFactory, folder: Path) -> Iterator[Node]:
    with _node(tmp_path_factory.mktemp("scratches"), folder, lambda number: number % 2 == 0) as n:
        yield n


def _measure(benchmark: Any, node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    async def pid_of(self: object, container_id: str) -> int:
        return node.pids[container_id]  # Docker is asked once for each container, and not here.

    monkeypatch.setattr(ContainerPids, "of", pid_of)
    collector = Collector(node.scratches)
    containers = [str(kernel["container_id"]) for kernel in node.kernels.values()]
    with asyncio.Runner() as runner:

        def tick() -> list[ContainerMeasurement]:
            return runner.run(collector.collect(node.kernels, containers))

        found = benchmark.pedantic(tick, rounds=10, warmup_rounds=2)
        measured = {str(m.key): m.per_container for m in found}
        runner.run(collector.close())
    # Every session's figures are of an interval in which its counters rose.
    assert len(measured["kvcache_preempted"]) == SESSIONS
    assert len(measured["kvcache_util"]) == SESSIONS
    assert {float(m.value) for m in measured["kvcache_files"].values()} == {FILES}
    assert len(measured.get("kvcache_store_rate", ())) == len(node.pids)


def _walk_in_every_tick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usages, "USAGE_INTERVAL_SECONDS", 0.0)
    # And to the end, however busy the machine is: what a tick does not wait for would not count.
    monkeypatch.setattr(usages, "USAGE_WAIT_SECONDS", 600.0)


@pytest.mark.parametrize("walks", [False, True])
@pytest.mark.parametrize(
    "sessions", ["engines", pytest.param("engines_and_servers", marks=needs_root)]
)
@pytest.mark.parametrize(
    "clock",
    [
        pytest.param(
            "processor",
            marks=pytest.mark.benchmark(group="collecting: processor", timer=time.process_time),
        ),
        pytest.param("wall", marks=pytest.mark.benchmark(group="collecting: wall")),
    ],
)
def test_tick(
    benchmark: Any,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    clock: str,
    sessions: str,
    walks: bool,
) -> None:
    if walks:
        _walk_in_every_tick(monkeypatch)
    _measure(benchmark, request.getfixturevalue(sessions), monkeypatch)
