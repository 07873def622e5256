"""Reads the plugin's settings again at the agent's ticks, for changes that nobody has told of.

Backend.AI watches them in etcd and tells its plugins. Its watch ends for good where etcd hangs for
a quarter of a minute, and where etcd was away, it misses what changes in the half minute until it
has found etcd again (seen with 26.4.16).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from ai.backend.logging import BraceStyleAdapter

from ..policy.policy import ETCD_PREFIX

log = BraceStyleAdapter(logging.getLogger(__spec__.name))

READ_TIMEOUT_SECONDS = 4.0


class SettingsReader:
    """Reads in the background; one reading at a time, and nothing waits for it."""

    def __init__(
        self,
        told: Callable[[], Mapping[str, Any]],
        tell: Callable[[Mapping[str, Any]], Awaitable[None]],
    ) -> None:
        """
        Args:
            told: what the plugin was told last.
            tell: is called with settings that differ from that.
        """
        self._told = told
        self._tell = tell
        self._reading: asyncio.Task[None] | None = None

    async def close(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.wait({self._reading})

    def tick(self, etcd: Any) -> None:
        """One tick.

        Args:
            etcd: the agent's own client, which sees what Backend.AI tells plugins of.
        """
        if self._reading is None or self._reading.done():
            self._reading = asyncio.create_task(self._read(etcd))

    async def _read(self, etcd: Any) -> None:
        before = self._told()
        try:
            async with asyncio.timeout(READ_TIMEOUT_SECONDS):
                found = await etcd.get_prefix(ETCD_PREFIX)
        except Exception as e:
            # Whatever its client raises, which has no base of its own. What was told remains.
            log.debug("the settings cannot be read from etcd: {!r}", e)
            return
        # Whoever has told meanwhile may know of something newer.
        if self._told() is before and found != before:
            log.info("the settings have changed, and nobody has told yet")
            await self._tell(found)
