"""Measures the sessions that have a KV cache, once per tick of the agent.

Everything is found anew in the agent's kernel registry and in the kernel's own configuration
folder, so that an agent that was restarted goes on where it was.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from pathlib import Path
from typing import Any

import aiodocker
from ai.backend.agent.stats import ContainerMeasurement, Measurement, MetricTypes
from ai.backend.common.types import MetricKey
from ai.backend.logging import BraceStyleAdapter

from ..engine.adapter import Transport
from ..metrics.indicators import (
    FOLDER_SIZE,
    INDICATORS,
    TRANSPORT,
    Indicator,
    Unit,
    usage_indicators,
)
from ..metrics.saving import cost_of
from .costs import Costs, EngineKind
from .leases import LeaseKeeper
from .pages import PageReader, Source
from .pids import ContainerPids
from .plan_file import PlanFiles
from .target import Target, target_of
from .transport import effective_transport
from .usages import Usages

log = BraceStyleAdapter(logging.getLogger(__spec__.name))

#: The name of the page that the engine's own port has.
_ENGINE = "engine"

#: No page is waited for longer, whether its turn came or not. The agent drops all figures of a tick
#: that takes four of its intervals (30 s each by default), and meanwhile those of other plugins
#: wait.
TICK_SECONDS = 10.0

#: Docker answers where a container is from memory.
TRANSPORT_TIMEOUT_SECONDS = 3.0


async def _guarded(target: Target, part: Awaitable[Mapping[str, float]]) -> Mapping[str, float]:
    """What a fault of ours makes of one session's figures, it makes of no other's."""
    try:
        return await part
    except Exception:
        log.exception("kernel {}: a fault of the plugin", target.kernel_id)
        return {}


class Collector:
    """Scrapes engines and sizes namespaces. Nothing it does raises into the agent's tick."""

    def __init__(self, scratch_root: Path) -> None:
        self._plans = PlanFiles(scratch_root)
        # Of its own: where a file server hangs, walks do, and nothing else.
        self._walkers = ThreadPoolExecutor(max_workers=4, thread_name_prefix="kvcache-walk")
        self._leases = LeaseKeeper(self._walkers)
        self._usages = Usages(self._walkers)
        self._costs = Costs()
        self._pids = ContainerPids()
        self._pages = PageReader(self._pids)
        self._sources: dict[tuple[str, str], Source] = {}

    async def close(self) -> None:
        await self._pages.close()
        await self._pids.close()
        self._walkers.shutdown(wait=False, cancel_futures=True)

    async def collect(
        self, kernels: Mapping[Any, Any], container_ids: Sequence[str]
    ) -> list[ContainerMeasurement]:
        """Measures the given containers.

        Args:
            kernels: the agent's registry, kernel id → kernel object.
            container_ids: those to be measured in this tick.
        """
        targets = await self._find_targets(kernels, frozenset(container_ids))
        self._leases.keep(
            {t.kernel_id: (t.namespace.folder, t.namespace.name) for t in targets if t.namespace},
            {str(kernel_id) for kernel_id in kernels},
        )
        self._pids.keep({t.container_id for t in targets})
        self._costs.keep({t.kernel_id for t in targets})
        self._usages.keep({t.namespace for t in targets if t.namespace})
        pages = self._keep_sources(targets)
        ends_at = asyncio.get_running_loop().time() + TICK_SECONDS
        # Where the engine and LMCache's server both report a figure, the engine's is used.
        parts = [
            *((t, self._inside(t, name, s, ends_at)) for t, name, s in pages if name != _ENGINE),
            *((t, self._engine(t, s, ends_at)) for t, name, s in pages if name == _ENGINE),
            *((t, self._transport(t)) for t in targets),
            *((t, self._folder(t)) for t in targets),
        ]
        values: dict[str, dict[str, float]] = {target.container_id: {} for target in targets}
        found = await asyncio.gather(*(_guarded(target, part) for target, part in parts))
        for (target, _), some in zip(parts, found, strict=True):
            values[target.container_id] |= some
        caps = {t.container_id: t.folder_cap for t in targets if t.folder_cap}
        return [
            _container_measurement(indicator, measured, caps)
            for indicator in INDICATORS
            if (
                measured := {
                    cid: result[indicator.key]
                    for cid, result in values.items()
                    if indicator.key in result
                }
            )
        ]

    async def _find_targets(
        self, kernels: Mapping[Any, Any], container_ids: frozenset[str]
    ) -> list[Target]:
        # The registry changes while we wait, so it is copied first.
        wanted = [
            (str(kernel_id), str(kernel["container_id"]), kernel)
            for kernel_id, kernel in list(kernels.items())
            if kernel.get("container_id") in container_ids
        ]
        kernel_ids = [kernel_id for kernel_id, _, _ in wanted]
        plans = await asyncio.to_thread(self._plans.read, kernel_ids)
        return [
            target
            for kernel_id, container_id, kernel in wanted
            if (plan := plans.get(kernel_id)) is not None
            and plan.get("kv_cache")
            and (target := target_of(kernel_id, container_id, kernel, plan)) is not None
        ]

    def _keep_sources(self, targets: Sequence[Target]) -> list[tuple[Target, str, Source]]:
        """(session, name of the page, what it said in earlier ticks), and forgets all others.

        A page that came late comes last, and so keeps no other from its turn.
        """
        pages = [
            (target, name, self._sources.get((target.kernel_id, name)) or Source())
            for target in targets
            for name in (_ENGINE, *target.inside)
        ]
        self._sources = {(target.kernel_id, name): source for target, name, source in pages}
        return sorted(pages, key=lambda page: page[2].late)

    async def _engine(self, target: Target, source: Source, ends_at: float) -> Mapping[str, float]:
        if target.metrics_url is None:
            return {}
        if target.namespace is None:
            return await self._pages.read_engine(target.metrics_url, source, ends_at)
        kind = EngineKind(target.namespace, target.slots)
        elsewhere = self._costs.elsewhere(target.kernel_id, kind)
        figures = await self._pages.read_engine(target.metrics_url, source, ends_at, elsewhere)
        cost = cost_of(source.reading) if source.reading is not None else None
        if cost is not None:
            self._costs.note(target.kernel_id, kind, cost)
        return figures

    async def _inside(
        self, target: Target, name: str, source: Source, ends_at: float
    ) -> Mapping[str, float]:
        usage = self._usages.last(target.namespace) if target.namespace else None
        return await self._pages.read_inside(
            target.container_id,
            target.inside[name],
            source,
            ends_at,
            usage.block_bytes if usage else None,
        )

    async def _transport(self, target: Target) -> Mapping[str, float]:
        if target.transport is None:
            return {}
        try:
            # Ordinary files are what they are; Docker need not be asked.
            is_gds = target.transport is Transport.GDS
            async with asyncio.timeout(TRANSPORT_TIMEOUT_SECONDS):
                pid = await self._pids.of(target.container_id) if is_gds else 0
                effective = await asyncio.to_thread(effective_transport, target.transport, pid)
        except (OSError, aiodocker.DockerError) as e:
            log.debug("kernel {}: its transport cannot be seen: {!r}", target.kernel_id, e)
            self._pids.forget(target.container_id)
            return {}
        return {TRANSPORT: float(effective)}

    async def _folder(self, target: Target) -> Mapping[str, float]:
        usage = await self._usages.of(target.namespace) if target.namespace else None
        return {} if usage is None else usage_indicators(usage)


def _container_measurement(
    indicator: Indicator, values: Mapping[str, float], caps: Mapping[str, int]
) -> ContainerMeasurement:
    def capacity(container_id: str) -> Decimal | None:
        if indicator.unit is Unit.PERCENT:
            return Decimal(100)
        if indicator.key == FOLDER_SIZE and container_id in caps:
            return Decimal(caps[container_id])
        return None

    return ContainerMeasurement(
        MetricKey(indicator.key),
        MetricTypes.GAUGE,
        per_container={
            cid: Measurement(Decimal(str(round(value, 3))), capacity(cid))
            for cid, value in values.items()
        },
        unit_hint=str(indicator.unit),
    )
