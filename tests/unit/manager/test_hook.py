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
    hangs: bool = False

    @asynccontextmanager
    async def begin_readonly_session_read_committed(self) -> AsyncIterator[Database]:
        if self.hangs:
            await asyncio.Event().wait()
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


async def enqueue() -> None:
    """As the manager announces a session."""
    nothing: Any = None
    hooks = HookPluginContext(nothing, {})
    plugin = KVCacheHook({}, {})
    await plugin.init()
    hooks.plugins["kvcache"] = plugin
    await hooks.notify("POST_ENQUEUE_SESSION", (SESSION, "my-session", "AKIA"))


class TestProject:
    async def test_is_told_for_thirty_days(self, manager: web.Application, store: Store) -> None:
        await enqueue()
        assert store.stored == [(f"kvcache.project.{SESSION}", str(PROJECT), 2_592_000)]

    async def test_of_a_session_that_is_gone(
        self, manager: web.Application, database: Database, store: Store
    ) -> None:
        database.found = None
        await enqueue()
        assert store.stored == []


class TestFaults:
    async def test_of_the_database(
        self,
        manager: web.Application,
        database: Database,
        store: Store,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        database.failure = OSError("gone")
        await enqueue()
        assert store.stored == []
        (line,) = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]
        assert line == f"session {SESSION}: its project is not told to agents: OSError('gone')"

    async def test_of_one_that_hangs_cost_a_second(
        self, manager: web.Application, database: Database, caplog: pytest.LogCaptureFixture
    ) -> None:
        assert hook.TELL_TIMEOUT_SECONDS == 1.0
        database.hangs = True
        async with asyncio.timeout(1.5):
            await enqueue()
        assert "TimeoutError()" in caplog.text

    async def test_manager_without_the_webapp(self, caplog: pytest.LogCaptureFixture) -> None:
        plugin = KVCacheHook({}, {})
        await plugin.init()
        for _ in range(3):
            await plugin.tell_project(SESSION, "my-session", "AKIA")
        assert caplog.text.count("the webapp plugin kvcache is not loaded") == 1

    async def test_manager_that_has_ended(self, database: Database, store: Store) -> None:
        app = web.Application()
        app["_root_app"] = {"_db": database, "_valkey_stat": store}
        async for _ in context.hand_over(app):
            assert context.current() is not None
        assert context.current() is None
