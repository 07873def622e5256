"""When plans are published, and what a store that fails costs. tests/cluster has a real store."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import attrs
import pytest

from ai.backend.kvcache.agent import publish
from ai.backend.kvcache.agent.plan_file import read_plan
from ai.backend.kvcache.agent.publish import PlanPublisher

WITHOUT = {"kv_cache": False, "no_kv_cache_because": "no model"}


@attrs.define
class Store:
    """Stands in for the agent's client: a real one cannot be made to hang or to fail at will."""

    stored: list[tuple[str, Any, int]] = attrs.field(factory=list)
    calls: int = 0
    failure: Exception | None = None
    hangs: bool = False

    async def setex(self, name: str, value: bytes, time: int) -> None:
        self.calls += 1
        if self.hangs:
            await asyncio.Event().wait()
        if self.failure is not None:
            raise self.failure
        self.stored.append((name, json.loads(value), time))

    @property
    def names(self) -> list[str]:
        return [name for name, _, _ in self.stored]


@attrs.define
class Agent:
    kernel_registry: dict[str, dict[str, Any]]
    valkey_stat_client: Any


@pytest.fixture
def store() -> Store:
    return Store()


@pytest.fixture
def agent(store: Store) -> Agent:
    """Two kernels that run, k1 and k2, and one that does not yet."""
    kernels: dict[str, dict[str, Any]] = {
        "k1": {"container_id": "c1"},
        "k2": {"container_id": "c2"},
    }
    return Agent({**kernels, "k3": {}}, store)


@pytest.fixture
async def publisher(tmp_path: Path) -> AsyncIterator[PlanPublisher]:
    publisher = PlanPublisher(tmp_path)
    yield publisher
    await publisher.close()


def write(root: Path, kernel_id: str, content: str = json.dumps(WITHOUT)) -> Path:
    directory = root / kernel_id / "config" / "kvcache"
    directory.mkdir(parents=True)
    (directory / "plan.json").write_text(content)
    return directory / "plan.json"


async def tick(publisher: PlanPublisher, agent: Any) -> None:
    publisher.tick(agent, ["c1", "c2"])
    if publisher._round is not None:
        await publisher._round


class TestPublishing:
    async def test_once_for_a_running_kernel(
        self, publisher: PlanPublisher, agent: Agent, store: Store, tmp_path: Path
    ) -> None:
        write(tmp_path, "k1")
        write(tmp_path, "k3")
        await tick(publisher, agent)
        await tick(publisher, agent)
        # An hour, and k2 did not ask for KV cache.
        assert store.stored == [("kvcache.plan.k1", WITHOUT, 3600)]

    async def test_again_before_it_expires(
        self,
        publisher: PlanPublisher,
        agent: Agent,
        store: Store,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        assert publish.RENEWAL_SECONDS < publish.EXPIRY_SECONDS / 2
        write(tmp_path, "k1")
        await tick(publisher, agent)
        monkeypatch.setattr(publish, "RENEWAL_SECONDS", 0.0)
        await tick(publisher, agent)
        assert store.names == ["kvcache.plan.k1", "kvcache.plan.k1"]

    async def test_after_a_restart_of_the_agent(
        self, publisher: PlanPublisher, agent: Agent, store: Store, tmp_path: Path
    ) -> None:
        write(tmp_path, "k1")
        await tick(publisher, agent)
        await tick(PlanPublisher(tmp_path), agent)
        assert store.names == ["kvcache.plan.k1", "kvcache.plan.k1"]

    @pytest.mark.parametrize("content", ["", "[1]", '{"a": NaN}', "{" * 1000, "x" * 2**21])
    async def test_not_what_is_no_plan(
        self, publisher: PlanPublisher, agent: Agent, store: Store, tmp_path: Path, content: str
    ) -> None:
        write(tmp_path, "k1", content)
        write(tmp_path, "k2")
        await tick(publisher, agent)
        assert store.names == ["kvcache.plan.k2"]

    async def test_as_soon_as_it_can_be_read(
        self, publisher: PlanPublisher, agent: Agent, store: Store, tmp_path: Path
    ) -> None:
        path = write(tmp_path, "k1", "{")
        await tick(publisher, agent)
        assert store.names == []
        path.write_text(json.dumps(WITHOUT))
        await tick(publisher, agent)
        assert store.names == ["kvcache.plan.k1"]


class TestStoreThatFails:
    async def test_is_logged_once_and_left_in_peace(
        self,
        publisher: PlanPublisher,
        agent: Agent,
        store: Store,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        write(tmp_path, "k1")
        store.failure = ConnectionError("gone")
        await tick(publisher, agent)
        await tick(publisher, agent)
        assert store.calls == 1
        monkeypatch.setattr(publish, "RETRY_SECONDS", 0.0)
        publisher._not_before = 0.0
        for _ in range(3):
            await tick(publisher, agent)
        assert store.calls == 4
        assert [r.getMessage() for r in caplog.records].count(
            "the plans of sessions cannot be published for now: ConnectionError('gone')"
        ) == 1
        store.failure = None
        await tick(publisher, agent)
        assert store.names == ["kvcache.plan.k1"]

    async def test_one_round_at_a_time_and_not_for_ever(
        self,
        publisher: PlanPublisher,
        agent: Agent,
        store: Store,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        write(tmp_path, "k1")
        store.hangs = True
        monkeypatch.setattr(publish, "ROUND_TIMEOUT_SECONDS", 0.5)
        for _ in range(3):
            publisher.tick(agent, ["c1"])
            await asyncio.sleep(0.05)
        assert store.calls == 1
        assert publisher._round is not None
        await publisher._round
        assert store.stored == []

    async def test_agent_without_a_client(
        self, publisher: PlanPublisher, agent: Agent, tmp_path: Path
    ) -> None:
        write(tmp_path, "k1")
        await tick(publisher, SimpleNamespace(kernel_registry=agent.kernel_registry))

    async def test_end_of_the_agent(
        self, publisher: PlanPublisher, agent: Agent, store: Store, tmp_path: Path
    ) -> None:
        write(tmp_path, "k1")
        store.hangs = True
        publisher.tick(agent, ["c1"])
        await asyncio.sleep(0.05)
        await publisher.close()
        assert publisher._round is not None
        assert publisher._round.cancelled()


class TestFile:
    """What is in it goes to the session's user, so it is that session's file and no other."""

    def test_link_to_another_file(self, tmp_path: Path) -> None:
        host = tmp_path / "secret.json"
        host.write_text('{"auths": {}}')
        path = write(tmp_path, "k1")
        path.unlink()
        path.symlink_to(host)
        assert read_plan(tmp_path, "k1") is None

    def test_pipe(self, tmp_path: Path) -> None:
        path = write(tmp_path, "k1")
        path.unlink()
        os.mkfifo(path)
        assert read_plan(tmp_path, "k1") is None

    def test_session_that_did_not_ask(self, tmp_path: Path) -> None:
        assert read_plan(tmp_path, "k1") is None
