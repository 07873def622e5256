"""Tells the agents which project a session is of, when it is enqueued."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from ai.backend.common.plugin.hook import HookHandler, HookPlugin
from ai.backend.common.types import SessionId
from ai.backend.logging import BraceStyleAdapter
from ai.backend.manager.models.session import SessionRow

from ..plan.project import EXPIRY_SECONDS, key_of
from . import context
from .context import ManagerContext

log = BraceStyleAdapter(logging.getLogger(__spec__.name))

#: Whoever asks for a session waits for its hooks; usually that takes milliseconds.
WAIT_SECONDS = 1.0

#: A manager under load goes on for so long without anybody waiting. It takes its time to start the
#: session, too.
TELL_TIMEOUT_SECONDS = 30.0


class KVCacheHook(HookPlugin):
    """Its handler runs after each session is in the database, whoever asked for it: a user, or the
    manager itself for a model service.
    """

    _has_complained: bool
    _telling: set[asyncio.Task[None]]

    async def init(self, context: Any = None) -> None:
        self._has_complained = False
        self._telling = set()

    async def cleanup(self) -> None:
        for task in self._telling:
            task.cancel()

    async def update_plugin_config(self, plugin_config: Mapping[str, Any]) -> None:
        self.plugin_config = plugin_config

    def get_handlers(self) -> Sequence[tuple[str, HookHandler]]:
        return [("POST_ENQUEUE_SESSION", self.tell_project)]

    async def tell_project(self, session_id: SessionId, *_: Any) -> None:
        """Never raises: the session goes on without its project's settings."""
        manager = context.current()
        if manager is None:
            if not self._has_complained:
                log.warning(
                    "sessions' projects are not told to agents: the webapp plugin kvcache is not "
                    "loaded; see allowed-plugins and disabled-plugins in manager.toml"
                )
            self._has_complained = True
            return
        task = asyncio.create_task(_tell(manager, session_id))
        self._telling.add(task)
        task.add_done_callback(self._telling.discard)
        await asyncio.wait({task}, timeout=WAIT_SECONDS)


async def _tell(manager: ManagerContext, session_id: SessionId) -> None:
    try:
        async with asyncio.timeout(TELL_TIMEOUT_SECONDS):
            await _store(manager, session_id)
    except Exception as e:
        log.warning("session {}: its project is not told to agents: {!r}", session_id, e)


async def _store(manager: ManagerContext, session_id: SessionId) -> None:
    query = sa.select(SessionRow.group_id).where(SessionRow.id == session_id)
    async with manager.db.begin_readonly_session_read_committed() as db_session:
        project_id = await db_session.scalar(query)
    if project_id is not None:
        key = key_of(str(session_id))
        await manager.valkey_stat.setex(key, str(project_id), EXPIRY_SECONDS)
