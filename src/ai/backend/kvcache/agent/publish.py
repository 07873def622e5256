"""Publishes the plans of an agent's kernels, where the manager finds them."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ai.backend.logging import BraceStyleAdapter

from ..plan.published import encode, key_of
from .plan_file import PlanFiles

log = BraceStyleAdapter(logging.getLogger(__spec__.name))

#: A plan outlives its session, and an agent that is down, by this.
EXPIRY_SECONDS = 3600

#: So often what was lost with a store that was restarted comes back.
RENEWAL_SECONDS = 600.0

#: A store that fails is left in peace for this long.
RETRY_SECONDS = 60.0

#: What a store that hangs is waited for, beside the ticks.
ROUND_TIMEOUT_SECONDS = 10.0


class PlanPublisher:
    """Stores plans in the background; one round at a time, and nothing waits for it.

    What was published is known to this process alone, so a restarted agent publishes it anew.
    """

    def __init__(self, scratch_root: Path) -> None:
        self._plans = PlanFiles(scratch_root)
        self._published: dict[str, float] = {}
        self._round: asyncio.Task[None] | None = None
        self._is_failing = False
        self._not_before = float("-inf")

    async def close(self) -> None:
        if self._round is not None:
            self._round.cancel()
            await asyncio.wait({self._round})

    def tick(self, agent: Any, container_ids: Sequence[str]) -> None:
        """One tick.

        Args:
            agent: Backend.AI's; its registry of kernels and its client of the store are used.
            container_ids: those that run now.
        """
        now = time.monotonic()
        if now < self._not_before or (self._round is not None and not self._round.done()):
            return
        containers = frozenset(container_ids)
        published = {
            str(kernel_id): self._published.get(str(kernel_id), float("-inf"))
            for kernel_id, kernel in agent.kernel_registry.items()
            if kernel.get("container_id") in containers
        }
        self._published = published
        if any(now - at >= RENEWAL_SECONDS for at in published.values()):
            self._round = asyncio.create_task(self._publish(agent, published, now))

    async def _publish(self, agent: Any, published: Mapping[str, float], now: float) -> None:
        """One round.

        Args:
            published: the kernels that run → when their plans were published.
            now: when the round began.
        """
        try:
            async with asyncio.timeout(ROUND_TIMEOUT_SECONDS):
                plans = await asyncio.to_thread(self._plans.read, tuple(published))
                for kernel_id, plan in plans.items():
                    if now - published[kernel_id] < RENEWAL_SECONDS:
                        continue
                    content = self._content(kernel_id, plan)
                    if content is not None:
                        client = agent.valkey_stat_client
                        await client.setex(key_of(kernel_id), content, EXPIRY_SECONDS)
                    self._published[kernel_id] = time.monotonic()
        except Exception as e:
            self._not_before = time.monotonic() + RETRY_SECONDS
            if not self._is_failing:
                log.warning("the plans of sessions cannot be published for now: {!r}", e)
            self._is_failing = True
        else:
            self._is_failing = False

    def _content(self, kernel_id: str, plan: Mapping[str, Any]) -> bytes | None:
        try:
            return encode(plan)
        except ValueError as e:
            log.debug("kernel {}: its plan is not published: {}", kernel_id, e)
            return None
