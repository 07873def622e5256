"""What lies in KV folders, as their storage proxies count it.

To count, a proxy may walk the whole folder. So an answer is good for a while, and so is that there
was none.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack

import attrs
from ai.backend.logging import BraceStyleAdapter
from ai.backend.manager.clients.storage_proxy.manager_facing_client import (
    StorageProxyManagerFacingClient,
)
from ai.backend.manager.config.unified import VolumesConfig

from ..policy.place import Place
from .storage_proxies import storage_client

log = BraceStyleAdapter(logging.getLogger(__spec__.name))

#: For one folder, with its wait for others.
USAGE_TIMEOUT_SECONDS = 10.0

#: So many folders are counted at the same time.
CONCURRENT = 8

ANSWER_SECONDS = 30.0


@attrs.frozen
class Usage:
    """None: not known."""

    used_bytes: int | None = None
    files: int | None = None


@attrs.frozen
class _Answer:
    usage: Usage
    good_until: float


class FolderUsages:
    """Asks storage proxies with the manager's own clients and settings."""

    def __init__(self, volumes: VolumesConfig) -> None:
        self._volumes = volumes
        self._answers: dict[Place, _Answer] = {}
        self._lock = asyncio.Lock()

    async def of(self, places: Sequence[Place]) -> list[Usage]:
        """In the order of the places; within USAGE_TIMEOUT_SECONDS."""
        async with self._lock:
            now = time.monotonic()
            self._answers = {p: a for p, a in self._answers.items() if a.good_until > now}
            unknown = [place for place in dict.fromkeys(places) if place not in self._answers]
            usages = await self._count(unknown)
            good_until = time.monotonic() + ANSWER_SECONDS
            self._answers |= {
                place: _Answer(usage, good_until)
                for place, usage in zip(unknown, usages, strict=True)
            }
            return [self._answers[place].usage for place in places]

    async def _count(self, places: Sequence[Place]) -> list[Usage]:
        turns = asyncio.Semaphore(CONCURRENT)
        async with AsyncExitStack() as stack:
            clients = {
                name: await stack.enter_async_context(storage_client(self._volumes.proxies[name]))
                for name in {place.host.proxy for place in places} & set(self._volumes.proxies)
            }
            return await asyncio.gather(
                *(_count(clients.get(place.host.proxy), place, turns) for place in places)
            )


async def _count(
    client: StorageProxyManagerFacingClient | None, place: Place, turns: asyncio.Semaphore
) -> Usage:
    if client is None:
        return Usage()
    try:
        async with asyncio.timeout(USAGE_TIMEOUT_SECONDS), turns:
            said = await client.get_folder_usage(place.host.volume, place.vfid)
        return Usage(int(said["used_bytes"]), int(said["file_count"]))
    except Exception as e:
        log.warning("the usage of {} cannot be asked for: {!r}", place, e)
        return Usage()
