"""What the manager has that its hooks are not given.

A hook is made without any access to the manager. A webapp of the same process has it, as soon as
the manager serves requests, and leaves it here.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import attrs
from ai.backend.common.clients.valkey_client.valkey_stat.client import ValkeyStatClient
from ai.backend.manager.models.utils import ExtendedAsyncSAEngine
from aiohttp import web


@attrs.frozen
class ManagerContext:
    """Both are the manager's own, and live as long as it does."""

    db: ExtendedAsyncSAEngine
    valkey_stat: ValkeyStatClient


_current: ManagerContext | None = None


def current() -> ManagerContext | None:
    """None where this process serves no requests (yet, or any more)."""
    return _current


async def hand_over(app: web.Application) -> AsyncIterator[None]:
    """For the webapp's ``cleanup_ctx``."""
    global _current
    manager = app["_root_app"]
    _current = ManagerContext(manager["_db"], manager["_valkey_stat"])
    yield
    _current = None
