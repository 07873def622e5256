from __future__ import annotations

import asyncio
import logging
import shutil
import socket
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import pytest

from ai.backend.kvcache.agent import projects
from ai.backend.kvcache.agent.projects import Projects, connect_store
from ai.backend.kvcache.plan.project import key_of

SESSION = "f3dd774e-caa5-4753-9607-b696d11ce834"
PROJECT = "2de2b969-1d04-48a6-af16-0bc8adb3c831"


@attrs.define
class Store:
    """A real server, as Backend.AI's own store is one."""

    port: int
    directory: Path
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self.process = subprocess.Popen(
            ["redis-server", "--port", str(self.port), "--bind", "127.0.0.1", "--save", ""],
            cwd=self.directory,
            stdout=subprocess.DEVNULL,
        )
        deadline = time.monotonic() + 20
        while True:
            try:
                return socket.create_connection(("127.0.0.1", self.port), 1).close()
            except OSError:
                assert time.monotonic() < deadline, "redis-server does not start"
                time.sleep(0.05)

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def put(self, session_id: str, content: bytes) -> None:
        """In the protocol's own words, since clients differ in what they take for text."""
        parts = [b"SET", key_of(session_id).encode(), content]
        lines = b"".join(b"$%d\r\n%s\r\n" % (len(part), part) for part in parts)
        with socket.create_connection(("127.0.0.1", self.port), 5) as connection:
            connection.sendall(b"*%d\r\n%s" % (len(parts), lines))
            assert connection.recv(16) == b"+OK\r\n"


@pytest.fixture
def port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        free: int = taken.getsockname()[1]
    return free


@pytest.fixture
def store(port: int, tmp_path: Path) -> Iterator[Store]:
    if shutil.which("redis-server") is None:
        pytest.skip("redis-server is not there")
    store = Store(port, tmp_path)
    store.start()
    yield store
    store.stop()


@pytest.fixture
async def told(port: int) -> AsyncIterator[Projects]:
    told = Projects(partial(connect_store, {"redis": {"addr": f"127.0.0.1:{port}"}}))
    yield told
    await told.close()


class TestProject:
    async def test_that_was_told(self, store: Store, told: Projects) -> None:
        store.put(SESSION, PROJECT.encode())
        assert await told.project_of(SESSION) == PROJECT

    async def test_as_a_policy_names_it(self, store: Store, told: Projects) -> None:
        store.put(SESSION, PROJECT.upper().encode())
        assert await told.project_of(SESSION) == PROJECT

    async def test_that_nobody_told(self, store: Store, told: Projects) -> None:
        assert await told.project_of(SESSION) is None

    async def test_that_is_told_later(self, store: Store, told: Projects) -> None:
        assert await told.project_of(SESSION) is None
        store.put(SESSION, PROJECT.encode())
        assert await told.project_of(SESSION) == PROJECT

    @pytest.mark.parametrize("content", [b"", b"default", b"\xff", PROJECT.encode() + b"/.."])
    async def test_that_is_none(
        self, store: Store, told: Projects, content: bytes, caplog: pytest.LogCaptureFixture
    ) -> None:
        store.put(SESSION, content)
        assert await told.project_of(SESSION) is None
        assert SESSION in caplog.text

    async def test_of_kernels_that_start_at_the_same_time(
        self, store: Store, told: Projects
    ) -> None:
        store.put(SESSION, PROJECT.encode())
        found = await asyncio.gather(*(told.project_of(SESSION) for _ in range(20)))
        assert found == [PROJECT] * 20


class TestStoreThatFails:
    async def test_known_sessions_stay_known(self, store: Store, told: Projects) -> None:
        store.put(SESSION, PROJECT.encode())
        await told.project_of(SESSION)
        store.stop()
        assert await told.project_of(SESSION) == PROJECT

    async def test_is_asked_again_after_a_while(
        self,
        store: Store,
        told: Projects,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        store.put(SESSION, PROJECT.encode())
        store.stop()
        async with asyncio.timeout(2):
            assert await told.project_of(SESSION) is None
        assert f"session {SESSION}: its project cannot be asked for" in caplog.text
        store.start()
        store.put(SESSION, PROJECT.encode())
        # Left in peace for now.
        assert await told.project_of(SESSION) is None
        # The wait itself, cut short.
        monkeypatch.setattr(told, "_not_before", 0.0)
        assert await asyncio.wait_for(self._found(told), 20) == PROJECT

    async def _found(self, told: Projects) -> str:
        while (project := await told.project_of(SESSION)) is None:
            told._not_before = 0.0
            await asyncio.sleep(0.1)
        return project

    async def test_comes_back_under_a_connection_that_was_made(
        self, store: Store, told: Projects
    ) -> None:
        await told.project_of("another")
        store.stop()
        assert await told.project_of(SESSION) is None
        store.start()
        store.put(SESSION, PROJECT.encode())
        told._not_before = 0.0
        assert await asyncio.wait_for(self._found(told), 40) == PROJECT

    async def test_is_not_there(self, told: Projects) -> None:
        async with asyncio.timeout(2):
            assert await told.project_of(SESSION) is None

    async def test_never_answers(self, told: Projects, port: int) -> None:
        with socket.create_server(("127.0.0.1", port)):
            async with asyncio.timeout(2):
                assert await told.project_of(SESSION) is None
                # Once is enough for ten seconds.
                assert projects.FAILURE_SECONDS == 10.0
                for i in range(100):
                    assert await told.project_of(f"another-{i}") is None

    async def test_agent_without_a_store(self) -> None:
        without: dict[str, Any] = {}
        told = Projects(partial(connect_store, without))
        assert await told.project_of(SESSION) is None
        await told.close()

    async def test_password_is_not_logged(
        self, port: int, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.DEBUG)
        config = {"redis": {"addr": f"127.0.0.1:{port}", "password": "s3cr3t"}}
        told = Projects(partial(connect_store, config))
        assert await told.project_of(SESSION) is None
        await told.close()
        assert "cannot be asked for" in caplog.text
        assert "s3cr3t" not in caplog.text


class TestMemory:
    async def test_is_bounded(
        self, store: Store, told: Projects, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(projects, "MAX_KNOWN", 2)
        for session_id in ("s1", "s2", "s3"):
            store.put(session_id, PROJECT.encode())
            await told.project_of(session_id)
        assert list(told._known) == ["s2", "s3"]
