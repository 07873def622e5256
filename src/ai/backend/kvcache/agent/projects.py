"""Which projects sessions are of, as the manager has told."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from ai.backend.common.clients.valkey_client.valkey_stat.client import ValkeyStatClient
from ai.backend.common.configs.redis import RedisConfig
from ai.backend.common.defs import REDIS_STATISTICS_DB, RedisRole
from ai.backend.logging import BraceStyleAdapter

from ..plan.project import decode, key_of

log = BraceStyleAdapter(logging.getLogger(__spec__.name))

#: A session's start waits for it.
ASK_TIMEOUT_SECONDS = 1.0

#: A store that fails is not asked for this long, so that sessions do not each wait for it.
FAILURE_SECONDS = 10.0

#: A session's kernels start within seconds of each other.
MAX_KNOWN = 1000


async def connect_store(local_config: Mapping[str, Any]) -> ValkeyStatClient:
    """With the agent's own access, which it learns from etcd before it makes its plugins."""
    profiles = RedisConfig.model_validate(local_config["redis"]).to_redis_profile_target()
    return await ValkeyStatClient.create(
        profiles.profile_target(RedisRole.STATISTICS).to_valkey_target(),
        db_id=REDIS_STATISTICS_DB,
        human_readable_name="kvcache.projects",
    )


class Projects:
    """Asks the store, over a connection of its own.

    The agent's is out of a plugin's reach before the first tick of its statistics.
    """

    def __init__(self, connect: Callable[[], Coroutine[Any, Any, ValkeyStatClient]]) -> None:
        self._connect = connect
        self._connection: asyncio.Task[ValkeyStatClient] | None = None
        self._known: dict[str, str] = {}
        self._not_before = float("-inf")

    def connect(self) -> asyncio.Task[ValkeyStatClient]:
        """Begins to, where it is not done: on a busy host the first session would wait long."""
        connection = self._connection
        if connection is None or (connection.done() and connection.exception() is not None):
            # A task of its own, which no session's timeout ends: half of one cannot be closed.
            connection = self._connection = asyncio.create_task(self._connect())
            # What is wrong is said when a session needs it.
            connection.add_done_callback(lambda done: done.cancelled() or done.exception())
        return connection

    async def close(self) -> None:
        if self._connection is None:
            return
        self._connection.cancel()
        with contextlib.suppress(asyncio.CancelledError, Exception):
            await (await self._connection).close()

    async def project_of(self, session_id: str) -> str | None:
        """The project's id; None where it is not known. Never raises, within a second."""
        if session_id in self._known:
            return self._known[session_id]
        if time.monotonic() < self._not_before:
            return None
        try:
            async with asyncio.timeout(ASK_TIMEOUT_SECONDS):
                project = await self._ask(session_id)
        except Exception as e:
            self._not_before = time.monotonic() + FAILURE_SECONDS
            log.warning("session {}: its project cannot be asked for: {!r}", session_id, e)
            return None
        if project is not None:
            self._remember(session_id, project)
        return project

    async def _ask(self, session_id: str) -> str | None:
        client = await asyncio.shield(self.connect())
        content = await client.execute_command(["GET", key_of(session_id)])
        if content is None:
            return None
        try:
            return decode(content)
        except ValueError as e:
            log.warning("session {}: what is stored as its project is none: {}", session_id, e)
            return None

    def _remember(self, session_id: str, project: str) -> None:
        self._known[session_id] = project
        while len(self._known) > MAX_KNOWN:
            # The oldest: dictionaries keep their order.
            del self._known[next(iter(self._known))]
