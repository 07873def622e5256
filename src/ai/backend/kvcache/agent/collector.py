"""Measures the sessions that have a KV cache, once per tick of the agent.

Everything is found anew in the agent's kernel registry and in the kernel's own configuration
folder, so that an agent that was restarted goes on where it was.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from pathlib import Path, PurePosixPath
from typing import Any

import aiodocker
import aiohttp
import attrs
from ai.backend.agent.stats import ContainerMeasurement, Measurement, MetricTypes
from ai.backend.common.types import MetricKey
from ai.backend.logging import BraceStyleAdapter

from ..engine.adapter import Transport
from ..engine.loopback import session_loopback
from ..engine.select import TRANSPORTS
from ..folder.layout import namespace_directory
from ..folder.usage import Usage, namespace_usage
from ..metrics.indicators import (
    INDICATORS,
    LASTING,
    TRANSPORT,
    Indicator,
    Unit,
    engine_indicators,
    usage_indicators,
)
from ..metrics.interval import between
from ..metrics.reading import Reading, read_page
from ..plan.plan import PLAN_FILE
from .leases import LeaseKeeper
from .netns import InsidePage, read_inside
from .pids import ContainerPids
from .transport import effective_transport

log = BraceStyleAdapter(logging.getLogger(__spec__.name))

#: The name of the page that the engine's own port has.
_ENGINE = "engine"

#: An engine that does not answer within this is left out of the tick.
SCRAPE_TIMEOUT_SECONDS = 3.0

#: A real page has about 100 KiB; one of this size is no metrics page.
MAX_PAGE_BYTES = 8 * 2**20

#: A plan has some kilobytes.
_MAX_PLAN_BYTES = 2**20

#: How many engines are asked at the same time.
MAX_CONNECTIONS = 32

#: Walking a namespace of a million files takes seconds of a file server; once a minute will do.
USAGE_INTERVAL_SECONDS = 60.0

#: A tick waits no longer than this for a walk that is under way.
USAGE_WAIT_SECONDS = 2.0


@attrs.define
class _Source:
    """What one page of a session last said."""

    reading: Reading | None = None
    read_at: float = float("-inf")
    lasting: Mapping[str, float] = attrs.field(factory=dict)

    def take(
        self, reading: Reading, now: float, block_bytes: float | None = None
    ) -> Mapping[str, float]:
        """The figures from the reading before to this one."""
        interval = between(self.reading, reading, now - self.read_at, block_bytes)
        values = engine_indicators(interval)
        if interval.seconds is None:
            # Another engine than the one that was asked before.
            self.lasting = {}
        self.reading, self.read_at = interval.now, now
        self.lasting = {**self.lasting, **{k: v for k, v in values.items() if k in LASTING}}
        return {**self.lasting, **values}


@attrs.frozen
class _Target:
    """One session to be measured."""

    container_id: str
    kernel_id: str
    metrics_url: str | None
    namespace: tuple[Path, str] | None
    """(KV folder as a path of this host, name of the namespace)."""
    storage_format: str
    """Of the files in it."""
    transport: Transport | None
    """As planned. None: by an adapter that is not known."""
    inside: Mapping[str, InsidePage]
    """Pages that are seen in the container only, by name."""
    sources: Mapping[str, _Source]
    """What each page said in earlier ticks, by the same names; the engine's own is there too."""


@attrs.define
class _Usage:
    """What a namespace was last known to hold."""

    usage: Usage | None = None
    measured_at: float = float("-inf")
    walk: asyncio.Future[Usage] | None = None


def _inside_pages(kernel_id: str, plan: Mapping[str, Any]) -> dict[str, InsidePage]:
    """What the plan names, as far as it is where the session was told to listen.

    The session can write to its plan, and is not to lead the agent anywhere else.
    """
    own = session_loopback(kernel_id)
    return {
        str(endpoint["name"]): InsidePage(own.host, endpoint["port"], "/metrics")
        for endpoint in plan.get("metrics") or ()
        if endpoint["host"] == own.host and endpoint["port"] in own.ports
    }


def _metrics_url(kernel: Any) -> str | None:
    """Where the model service's engine answers, as the agent published its port."""
    for port in kernel.service_ports or ():
        if port.get("is_inference") and port.get("host_ports") and port["host_ports"][0]:
            host = kernel.get("kernel_host") or "127.0.0.1"
            return f"http://{host}:{port['host_ports'][0]}/metrics"
    return None


def _namespace(kernel: Any, plan: Mapping[str, Any]) -> tuple[Path, str] | None:
    """The plan names the container's path; the kernel's mounts say where that lies on this host."""
    name = plan["namespace"]["name"]
    if not re.fullmatch(r"[0-9a-f]{32}", name):
        return None
    storage = PurePosixPath(plan["storage"])
    for mount in kernel.resource_spec.mounts:
        target = PurePosixPath(mount.target)
        if mount.source is not None and namespace_directory(target, name) == storage:
            return Path(mount.source), name
    return None


def _read_inside(pid: int, page: InsidePage) -> Reading:
    return read_page(read_inside(pid, page, SCRAPE_TIMEOUT_SECONDS, MAX_PAGE_BYTES))


async def _read_page(response: aiohttp.ClientResponse) -> str:
    """The body, of bounded size: what answers is the user's container."""
    page = bytearray()
    async for chunk in response.content.iter_chunked(64 * 2**10):
        page += chunk
        if len(page) > MAX_PAGE_BYTES:
            raise ValueError(f"the page has more than {MAX_PAGE_BYTES} bytes")
    return page.decode()


class Collector:
    """Scrapes engines and sizes namespaces. Nothing it does raises into the agent's tick."""

    def __init__(self, scratch_root: Path) -> None:
        self._scratch_root = scratch_root
        # Of its own: where a file server hangs, walks do, and nothing else.
        self._walkers = ThreadPoolExecutor(max_workers=4, thread_name_prefix="kvcache-walk")
        self._leases = LeaseKeeper(self._walkers)
        self._http: aiohttp.ClientSession | None = None
        self._plans: dict[str, Mapping[str, Any] | None] = {}
        self._usages: dict[tuple[Path, str], _Usage] = {}
        self._sources: dict[tuple[str, str], _Source] = {}
        # Of its own: its threads enter network namespaces, and do nothing else.
        self._insiders = ThreadPoolExecutor(max_workers=4, thread_name_prefix="kvcache-netns")
        self._pids = ContainerPids()

    async def close(self) -> None:
        if self._http is not None:
            await self._http.close()
        await self._pids.close()
        self._walkers.shutdown(wait=False, cancel_futures=True)
        self._insiders.shutdown(wait=False, cancel_futures=True)

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
            {t.kernel_id: t.namespace for t in targets if t.namespace},
            {str(kernel_id) for kernel_id in kernels},
        )
        results = await asyncio.gather(*(self._measure(target) for target in targets))
        values = {
            target.container_id: result for target, result in zip(targets, results, strict=True)
        }
        return [
            _container_measurement(indicator, measured)
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
    ) -> list[_Target]:
        # The registry changes while we wait, so it is copied first.
        wanted = [
            (str(kernel_id), str(kernel["container_id"]), kernel)
            for kernel_id, kernel in list(kernels.items())
            if kernel.get("container_id") in container_ids
        ]
        unknown = [kernel_id for kernel_id, _, _ in wanted if kernel_id not in self._plans]
        if unknown:
            self._plans |= await asyncio.to_thread(self._read_plans, unknown)
        alive = {kernel_id for kernel_id, _, _ in wanted}
        self._plans = {k: plan for k, plan in self._plans.items() if k in alive}
        targets = [
            target
            for kernel_id, container_id, kernel in wanted
            if (plan := self._plans[kernel_id]) is not None
            and (target := self._target(kernel_id, container_id, kernel, plan)) is not None
        ]
        self._usages = {
            t.namespace: self._usages.get(t.namespace, _Usage()) for t in targets if t.namespace
        }
        self._sources = {
            (t.kernel_id, name): source for t in targets for name, source in t.sources.items()
        }
        self._pids.keep({t.container_id for t in targets})
        return targets

    def _target(
        self, kernel_id: str, container_id: str, kernel: Any, plan: Mapping[str, Any]
    ) -> _Target | None:
        """None for a plan that is none: a session can write to its own, and to no other's."""
        try:
            inside = _inside_pages(kernel_id, plan)
            return _Target(
                container_id=container_id,
                kernel_id=kernel_id,
                metrics_url=_metrics_url(kernel),
                namespace=_namespace(kernel, plan),
                storage_format=str(plan["namespace"]["description"]["storage_format"]),
                transport=TRANSPORTS.get(plan["engine"]),
                inside=inside,
                sources={
                    name: self._sources.get((kernel_id, name)) or _Source()
                    for name in (_ENGINE, *inside)
                },
            )
        except (AttributeError, LookupError, TypeError, ValueError) as e:
            log.debug("kernel {}: its {} is not understood: {!r}", kernel_id, PLAN_FILE, e)
            return None

    def _read_plans(self, kernel_ids: Sequence[str]) -> dict[str, Mapping[str, Any] | None]:
        return {kernel_id: self._read_plan(kernel_id) for kernel_id in kernel_ids}

    def _read_plan(self, kernel_id: str) -> Mapping[str, Any] | None:
        """The plan of a session with KV cache; None for every other session."""
        path = self._scratch_root / kernel_id / "config" / "kvcache" / PLAN_FILE
        try:
            with path.open("rb") as file:
                plan = json.loads(file.read(_MAX_PLAN_BYTES))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, RecursionError) as e:
            log.warning("kernel {}: its {} cannot be read: {}", kernel_id, PLAN_FILE, e)
            return None
        return plan if isinstance(plan, dict) and plan.get("kv_cache") else None

    async def _measure(self, target: _Target) -> Mapping[str, float]:
        pages = asyncio.gather(
            *(self._scrape_inside(target, *page) for page in target.inside.items()),
            self._scrape(target),
            self._transport(target),
        )
        usage = await self._usage(target)
        values: dict[str, float] = {}
        # What both say, the engine says.
        for found in await pages:
            values |= found
        return values if usage is None else {**values, **usage_indicators(usage)}

    async def _scrape(self, target: _Target) -> Mapping[str, float]:
        if target.metrics_url is None:
            return {}
        if self._http is None:
            self._http = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=MAX_CONNECTIONS),
                timeout=aiohttp.ClientTimeout(total=SCRAPE_TIMEOUT_SECONDS),
            )
        try:
            async with self._http.get(target.metrics_url) as response:
                response.raise_for_status()
                page = await _read_page(response)
            reading = await asyncio.to_thread(read_page, page)
        except (aiohttp.ClientError, TimeoutError, ValueError) as e:
            # Engines take minutes to load a model, so this is the ordinary state at first.
            log.debug("kernel {}: no engine metrics: {!r}", target.kernel_id, e)
            return {}
        return target.sources[_ENGINE].take(reading, time.monotonic())

    async def _scrape_inside(
        self, target: _Target, name: str, page: InsidePage
    ) -> Mapping[str, float]:
        try:
            async with asyncio.timeout(SCRAPE_TIMEOUT_SECONDS):
                pid = await self._pids.of(target.container_id)
                reading = await asyncio.get_running_loop().run_in_executor(
                    self._insiders, _read_inside, pid, page
                )
        except (OSError, ValueError, aiodocker.DockerError) as e:
            log.debug("kernel {}: no page of its {}: {!r}", target.kernel_id, name, e)
            self._pids.forget(target.container_id)
            return {}
        usage = self._usages[target.namespace].usage if target.namespace else None
        block_bytes = usage.block_bytes if usage else None
        return target.sources[name].take(reading, time.monotonic(), block_bytes)

    async def _transport(self, target: _Target) -> Mapping[str, float]:
        if target.transport is None:
            return {}
        try:
            # Ordinary files are what they are; Docker need not be asked.
            is_gds = target.transport is Transport.GDS
            pid = await self._pids.of(target.container_id) if is_gds else 0
            effective = await asyncio.to_thread(effective_transport, target.transport, pid)
        except (OSError, aiodocker.DockerError) as e:
            log.debug("kernel {}: its transport cannot be seen: {!r}", target.kernel_id, e)
            self._pids.forget(target.container_id)
            return {}
        return {TRANSPORT: float(effective)}

    async def _usage(self, target: _Target) -> Usage | None:
        if target.namespace is None:
            return None
        known = self._usages[target.namespace]
        now = time.monotonic()
        if known.walk is None and now - known.measured_at >= USAGE_INTERVAL_SECONDS:
            loop = asyncio.get_running_loop()
            known.walk = loop.run_in_executor(
                self._walkers, namespace_usage, *target.namespace, target.storage_format
            )
        if known.walk is not None:
            done, _ = await asyncio.wait({known.walk}, timeout=USAGE_WAIT_SECONDS)
            # Sessions that share the namespace wait for the same walk; the first one files it.
            if done and (walk := known.walk) is not None:
                known.walk = None
                known.measured_at = now
                try:
                    known.usage = walk.result()
                except OSError as e:
                    known.usage = None
                    log.warning("kernel {}: namespace not readable: {}", target.kernel_id, e)
        return known.usage


def _container_measurement(
    indicator: Indicator, values: Mapping[str, float]
) -> ContainerMeasurement:
    capacity = Decimal(100) if indicator.unit is Unit.PERCENT else None
    return ContainerMeasurement(
        MetricKey(indicator.key),
        MetricTypes.GAUGE,
        per_container={
            cid: Measurement(Decimal(str(round(value, 3))), capacity)
            for cid, value in values.items()
        },
        unit_hint=str(indicator.unit),
    )
