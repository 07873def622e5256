"""Changes of the settings that nobody tells the plugin of. tests/cluster has Backend.AI's watch."""

from __future__ import annotations

import asyncio
import json
import logging
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import attrs
import pytest
from ai.backend.common.etcd import AsyncEtcd, ConfigScopes
from ai.backend.common.types import HostPortPair

from ai.backend.kvcache.agent import settings_reader
from ai.backend.kvcache.agent.plugin import KVCachePlugin
from ai.backend.kvcache.agent.settings_reader import SettingsReader
from ai.backend.kvcache.policy.policy import ETCD_KEY


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
    return port


def client_at(port: int) -> AsyncEtcd:
    """As the agent's own: it sees what is said for its resource group as well."""
    scopes = {ConfigScopes.GLOBAL: "", ConfigScopes.SGROUP: "sgroup/default"}
    return AsyncEtcd(HostPortPair("127.0.0.1", port), "test", scopes)


@attrs.frozen
class Server:
    """A real etcd."""

    port: int
    process: subprocess.Popen[bytes]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    if shutil.which("etcd") is None:
        pytest.skip("etcd is not there")
    directory: Path = tmp_path_factory.mktemp("etcd")
    port, peer = free_port(), f"http://127.0.0.1:{free_port()}"
    process = subprocess.Popen(
        [
            "etcd",
            *("--name=test", f"--data-dir={directory}", f"--initial-cluster=test={peer}"),
            *(f"--listen-peer-urls={peer}", f"--initial-advertise-peer-urls={peer}"),
            f"--listen-client-urls=http://127.0.0.1:{port}",
            f"--advertise-client-urls=http://127.0.0.1:{port}",
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + 20
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            break
        except OSError:
            assert time.monotonic() < deadline, "etcd does not start"
            time.sleep(0.05)
    yield Server(port, process)
    process.send_signal(signal.SIGCONT)
    process.kill()
    process.wait()


@pytest.fixture
async def etcd(server: Server) -> AsyncIterator[AsyncEtcd]:
    """The agent's client, of an etcd that says nothing for the plugin."""
    async with client_at(server.port) as client:
        yield client
        await client.delete(ETCD_KEY)


def policy(**site: str) -> dict[str, str]:
    """As Backend.AI tells it."""
    return {"policy": json.dumps(site)}


@attrs.define
class Told:
    """Stands for the plugin."""

    last: Mapping[str, Any] = attrs.field(factory=dict)
    times: int = 0

    async def tell(self, settings: Mapping[str, Any]) -> None:
        self.last = settings
        self.times += 1


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture
async def reader(told: Told) -> AsyncIterator[SettingsReader]:
    reader = SettingsReader(lambda: told.last, told.tell)
    yield reader
    await reader.close()


async def tick(reader: SettingsReader, etcd: Any) -> None:
    """One tick, with all that follows."""
    reader.tick(etcd)
    assert reader._reading is not None
    await reader._reading


class TestChange:
    async def test_is_told_once(self, etcd: AsyncEtcd, reader: SettingsReader, told: Told) -> None:
        for change in (policy(mode="auto"), policy(mode="off")):
            before = told.times
            await etcd.put(ETCD_KEY, change["policy"])
            for _ in range(3):
                await tick(reader, etcd)
            assert dict(told.last) == change
            assert told.times == before + 1
        await etcd.delete(ETCD_KEY)
        await tick(reader, etcd)
        assert dict(told.last) == {}

    async def test_of_the_resource_group_counts_as_for_backend_ai(
        self, etcd: AsyncEtcd, reader: SettingsReader, told: Told
    ) -> None:
        await etcd.put(ETCD_KEY, policy(mode="auto")["policy"])
        await etcd.put(ETCD_KEY, policy(mode="off")["policy"], scope=ConfigScopes.SGROUP)
        try:
            await tick(reader, etcd)
            assert dict(told.last) == policy(mode="off")
        finally:
            await etcd.delete(ETCD_KEY, scope=ConfigScopes.SGROUP)

    async def test_that_was_told_is_not_told_again(
        self, etcd: AsyncEtcd, reader: SettingsReader, told: Told
    ) -> None:
        await etcd.put(ETCD_KEY, policy(mode="auto")["policy"])
        told.last = policy(mode="auto")
        await tick(reader, etcd)
        assert told.times == 0


class TestEtcdThatFails:
    async def test_paused(
        self,
        server: Server,
        etcd: AsyncEtcd,
        reader: SettingsReader,
        told: Told,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        assert settings_reader.READ_TIMEOUT_SECONDS == 4.0
        monkeypatch.setattr(settings_reader, "READ_TIMEOUT_SECONDS", 0.5)
        told.last = policy(mode="auto")
        server.process.send_signal(signal.SIGSTOP)
        try:
            async with asyncio.timeout(3):
                await tick(reader, etcd)
        finally:
            server.process.send_signal(signal.SIGCONT)
        assert told.last == policy(mode="auto")
        monkeypatch.undo()
        await etcd.put(ETCD_KEY, policy(mode="off")["policy"])
        await tick(reader, etcd)
        assert dict(told.last) == policy(mode="off")
        assert [r for r in caplog.records if r.levelno > logging.INFO] == []

    async def test_not_there(
        self, reader: SettingsReader, told: Told, caplog: pytest.LogCaptureFixture
    ) -> None:
        async with client_at(free_port()) as etcd:
            await tick(reader, etcd)
        assert told.times == 0
        assert [r for r in caplog.records if r.levelno > logging.INFO] == []


@attrs.define
class SlowEtcd:
    """Not a real one, whose answer cannot be held back once it is made."""

    asked: asyncio.Event = attrs.field(factory=asyncio.Event)
    may_answer: asyncio.Event = attrs.field(factory=asyncio.Event)
    times: int = 0

    async def get_prefix(self, _: str) -> Mapping[str, str]:
        self.times += 1
        self.asked.set()
        await self.may_answer.wait()
        return policy(mode="off")


class TestAnswerThatTakesItsTime:
    async def test_does_not_undo_what_was_told_meanwhile(
        self, reader: SettingsReader, told: Told
    ) -> None:
        etcd = SlowEtcd()
        reader.tick(etcd)
        await etcd.asked.wait()
        told.last = policy(mode="auto")
        etcd.may_answer.set()
        assert reader._reading is not None
        await reader._reading
        assert told.last == policy(mode="auto")

    async def test_is_asked_for_once(self, reader: SettingsReader) -> None:
        etcd = SlowEtcd()
        for _ in range(3):
            reader.tick(etcd)
            await etcd.asked.wait()
        assert etcd.times == 1


class TestPlugin:
    async def test_follows_at_its_tick(self, etcd: AsyncEtcd, plugin: KVCachePlugin) -> None:
        await etcd.put(ETCD_KEY, policy(**{"mount-point": "/elsewhere"})["policy"])
        ctx: Any = SimpleNamespace(agent=SimpleNamespace(etcd=etcd, kernel_registry={}))
        await plugin.gather_container_measures(ctx, [])
        assert plugin._settings_reader._reading is not None
        await plugin._settings_reader._reading
        assert str(plugin._policy.settings_for(None, None).mount_point) == "/elsewhere"
