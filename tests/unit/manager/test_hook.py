"""What the manager's hook does where it cannot do its work. tests/cluster has the real manager."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

import attrs
import pytest
from ai.backend.common.plugin.hook import HookPluginContext
from ai.backend.common.types import SessionId
from aiohttp import web

from ai.backend.kvcache.manager import context, hook
from ai.backend.kvcache.manager.hook import KVCacheHook

#: The manager names what it shares with webapps by plain text.
pytestmark = pytest.mark.filterwarnings("ignore::aiohttp.web.NotAppKeyWarning")

SESSION = SessionId(UUID("f3dd774e-caa5-4753-9607-b696d11ce834"))
PROJECT = UUID("2de2b969-1d04-48a6-af16-0bc8adb3c831")


@attrs.define
class Database:
    """Stands in for the manager's: a real one cannot be made to hang or to fail at will."""

    found: UUID | None = PROJECT
    failure: Exception | None = None
    takes: asyncio.Event | None = None
    """It answers when this has come."""

    @asynccontextmanager
    async def begin_readonly_session_read_committed(self) -> AsyncIterator[Database]:
        if self.takes is not None:
            await self.takes.wait()
        if self.failure is not None:
            raise self.failure
        yield self

    async def scalar(self, _: Any) -> UUID | None:
        return self.found


@attrs.define
class Store:
    """Likewise."""

    stored: list[tuple[str, str, int]] = attrs.field(factory=list)

    async def setex(self, name: str, value: str, time: int) -> None:
        self.stored.append((name, value, time))


@pytest.fixture
def database() -> Database:
    return Database()


@pytest.fixture
def store() -> Store:
    return Store()


@pytest.fixture
async def manager(database: Database, store: Store) -> AsyncIterator[web.Application]:
    """A manager that serves requests, as far as a webapp of it can see."""
    root, app = web.Application(), web.Application()
    root["_db"], root["_valkey_stat"] = database, store

    async def set_root(app: web.Application) -> None:
        app["_root_app"] = root

    app.cleanup_ctx.append(context.hand_over)
    # As Backend.AI does it, after the webapp was made.
    app.on_startup.insert(0, set_root)
    root.add_subapp("/kvcache", app)
    runner = web.AppRunner(root)
    await runner.setup()
    yield root
    await runner.cleanup()


@pytest.fixture
async def plugin() -> AsyncIterator[KVCacheHook]:
    plugin = KVCacheHook({}, {})
    await plugin.init()
    yield plugin
    await plugin.cleanup()


async def enqueue(plugin: KVCacheHook) -> None:
    """As the manager announces a session."""
    nothing: Any = None
    hooks = HookPluginContext(nothing, {})
    hooks.plugins["kvcache"] = plugin
    await hooks.notify("POST_ENQUEUE_SESSION", (SESSION, "my-session", "AKIA"))


class TestProject:
    async def test_is_told_for_thirty_days(
        self, manager: web.Application, plugin: KVCacheHook, store: Store
    ) -> None:
        await enqueue(plugin)
        assert store.stored == [(f"kvcache.project.{SESSION}", str(PROJECT), 2_592_000)]

    async def test_of_a_session_that_is_gone(
        self, manager: web.Application, plugin: KVCacheHook, database: Database, store: Store
    ) -> None:
        database.found = None
        await enqueue(plugin)
        assert store.stored == []


class TestFaults:
    async def test_of_the_database(
        self,
        manager: web.Application,
        plugin: KVCacheHook,
        database: Database,
        store: Store,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        database.failure = OSError("gone")
        await enqueue(plugin)
        assert store.stored == []
        (line,) = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]
        assert line == f"session {SESSION}: its project is not told to agents: OSError('gone')"

    async def test_of_one_that_is_slow_cost_a_second(
        self, manager: web.Application, plugin: KVCacheHook, database: Database, store: Store
    ) -> None:
        assert hook.WAIT_SECONDS == 1.0
        database.takes = asyncio.Event()
        async with asyncio.timeout(1.5):
            await enqueue(plugin)
        assert store.stored == []
        # The session has not started yet.
        database.takes.set()
        await asyncio.wait(plugin._telling, timeout=5)
        assert [value for _, value, _ in store.stored] == [str(PROJECT)]

    async def test_of_one_that_hangs_end(
        self,
        manager: web.Application,
        plugin: KVCacheHook,
        database: Database,
        caplog: pytest.LogCaptureFixture,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setattr(hook, "TELL_TIMEOUT_SECONDS", 0.1)
        database.takes = asyncio.Event()
        await enqueue(plugin)
        assert f"session {SESSION}: its project is not told to agents: TimeoutError" in caplog.text
        assert plugin._telling == set()

    async def test_of_one_that_hangs_do_not_outlive_the_manager(
        self, manager: web.Application, plugin: KVCacheHook, database: Database
    ) -> None:
        database.takes = asyncio.Event()
        await enqueue(plugin)
        (task,) = plugin._telling
        await plugin.cleanup()
        await asyncio.wait({task}, timeout=5)
        assert task.cancelled()

    async def test_manager_without_the_webapp(
        self, plugin: KVCacheHook, caplog: pytest.LogCaptureFixture
    ) -> None:
        for _ in range(3):
            await enqueue(plugin)
        assert caplog.text.count("the webapp plugin kvcache is not loaded") == 1

    async def test_manager_that_has_ended(self, database: Database, store: Store) -> None:
        app = web.Application()
        app["_root_app"] = {"_db": database, "_valkey_stat": store}
        async for _ in context.hand_over(app):
            assert context.current() is not None
        assert context.current() is None
