"""Keeps the leases of the sessions that run on this agent."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Collection, Mapping
from concurrent.futures import Executor
from pathlib import Path

from ai.backend.logging import BraceStyleAdapter

from ..folder.lease import release, touch

log = BraceStyleAdapter(logging.getLogger(__spec__.name))

TOUCH_INTERVAL_SECONDS = 60.0

type Place = tuple[Path, str]
"""(KV folder as a path of this host, name of the namespace)."""


class LeaseKeeper:
    """Touches leases once a minute and removes those of sessions that have ended.

    File servers can hang, so nothing waits for it: a round that is still under way is left alone.
    """

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._held: dict[str, Place] = {}
        self._touched_at = float("-inf")
        self._round: asyncio.Future[None] | None = None

    def keep(self, running: Mapping[str, Place], alive: Collection[str]) -> None:
        """One tick.

        Args:
            running: the sessions with KV cache, kernel id → place.
            alive: all kernels of the agent, whether they can be measured now or not.
        """
        if self._round is not None and not self._round.done():
            return
        self._held |= running
        ended = {k: place for k, place in self._held.items() if k not in alive}
        now = time.monotonic()
        is_due = now - self._touched_at >= TOUCH_INTERVAL_SECONDS
        touched = dict(running) if is_due else {}
        if not ended and not touched:
            return
        if is_due:
            self._touched_at = now
        self._held = {k: place for k, place in self._held.items() if k in alive}
        loop = asyncio.get_running_loop()
        self._round = loop.run_in_executor(self._executor, _carry_out, touched, ended)


def _carry_out(touched: Mapping[str, Place], ended: Mapping[str, Place]) -> None:
    for action, places in ((touch, touched), (release, ended)):
        for kernel_id, (folder, namespace) in places.items():
            try:
                action(folder, namespace, kernel_id)
            except OSError as e:
                log.warning("kernel {}: its lease cannot be kept: {}", kernel_id, e)
