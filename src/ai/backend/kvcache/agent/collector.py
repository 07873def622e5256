"""Measures the sessions that have a KV cache, once per tick of the agent.

Everything is found anew in the agent's kernel registry and in the kernel's own configuration
folder, so that an agent that was restarted goes on where it was.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from decimal import Decimal
from http import HTTPStatus
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
    FOLDER_SIZE,
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
from ..sizes import MAX_BYTES
from .leases import LeaseKeeper
from .netns import InsidePage, read_inside
from .pids import ContainerPids
from .plan_file import read_plan
from .transport import effective_transport

log = BraceStyleAdapter(logging.getLogger(__spec__.name))

#: The name of the page that the engine's own port has.
_ENGINE = "engine"

#: A page that has not come within this, from its turn on, is left out of the tick.
SCRAPE_TIMEOUT_SECONDS = 3.0

#: No page is waited for longer, whether its turn came or not. The agent drops all figures of a tick
#: that takes four of its intervals (30 s each by default), and meanwhile those of other plugins
#: wait.
TICK_SECONDS = 10.0

#: An engine's page has about 50 KiB for each of its ranks; one of this size is no metrics page.
#: Reading the worst page takes a quarter of a second of a core for each MiB.
MAX_PAGE_BYTES = 4 * 2**20

#: How many engines are asked at the same time.
MAX_CONNECTIONS = 64

#: The same of pages that are seen in a container only, each of which takes a thread.
MAX_INSIDE = 16

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
    late: int = 0
    """How many times in a row it did not come in time."""

    def take(
        self, reading: Reading, now: float, block_bytes: float | None = None
    ) -> Mapping[str, float]:
        """The figures from the reading before to this one.

        Raises:
            ValueError: it is another page: nothing is on it of what was there before.
        """
        if self.reading is not None and self.reading.values and not reading.values:
            raise ValueError("nothing that counts is on the page")
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
    folder_cap: int | None
    """Bytes, as the policy says it."""
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


def _folder_cap(plan: Mapping[str, Any]) -> int | None:
    cap = plan.get("folder_cap_bytes")
    return cap if type(cap) is int and 0 < cap <= MAX_BYTES else None


def _read_inside(pid: int, page: InsidePage) -> Reading:
    return read_page(read_inside(pid, page, SCRAPE_TIMEOUT_SECONDS, MAX_PAGE_BYTES))


async def _read_page(response: aiohttp.ClientResponse) -> str:
    """The body, of bounded size: what answers is the user's container."""
    if response.status != HTTPStatus.OK:
        raise ValueError(f"the engine answers with status {response.status}")
    page = bytearray()
    async for chunk in response.content.iter_chunked(64 * 2**10):
        page += chunk
        if len(page) > MAX_PAGE_BYTES:
            raise ValueError(f"the page has more than {MAX_PAGE_BYTES} bytes")
    return page.decode()


@asynccontextmanager
async def _turn(turns: asyncio.Semaphore, source: _Source, ends_at: float) -> AsyncIterator[None]:
    """Waits for one of the turns and lets it take no more than its time.

    Args:
        ends_at: when the tick is over, in the loop's time.

    Raises:
        TimeoutError: the time is over, or the turn did not come.
    """
    async with asyncio.timeout_at(ends_at), turns:
        try:
            async with asyncio.timeout(SCRAPE_TIMEOUT_SECONDS):
                yield
        except (TimeoutError, asyncio.CancelledError):
            source.late += 1
            raise
        except Exception:
            # It answered, however badly.
            source.late = 0
            raise
        source.late = 0


async def _guarded(target: _Target, part: Awaitable[Mapping[str, float]]) -> Mapping[str, float]:
    """What a fault of ours makes of one session's figures, it makes of no other's."""
    try:
        return await part
    except Exception:
        log.exception("kernel {}: a fault of the plugin", target.kernel_id)
        return {}


def _brief(error: Exception) -> str:
    """What answers is in it, and may be long."""
    return repr(error)[:200]


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
        self._insiders = ThreadPoolExecutor(MAX_INSIDE, thread_name_prefix="kvcache-netns")
        self._pids = ContainerPids()
        self._engine_turns = asyncio.Semaphore(MAX_CONNECTIONS)
        self._inside_turns = asyncio.Semaphore(MAX_INSIDE)

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
        ends_at = asyncio.get_running_loop().time() + TICK_SECONDS
        # A page that came late comes last, and so keeps no other from its turn.
        pages = sorted(
            ((target, name) for target in targets for name in target.sources),
            key=lambda page: page[0].sources[page[1]].late,
        )
        # What both say, the engine says.
        parts = [
            *((t, self._scrape_inside(t, name, ends_at)) for t, name in pages if name != _ENGINE),
            *((t, self._scrape(t, ends_at)) for t, name in pages if name == _ENGINE),
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
                folder_cap=_folder_cap(plan),
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
        plan = read_plan(self._scratch_root, kernel_id)
        return plan if plan and plan.get("kv_cache") else None

    async def _scrape(self, target: _Target, ends_at: float) -> Mapping[str, float]:
        if target.metrics_url is None:
            return {}
        if self._http is None:
            self._http = aiohttp.ClientSession(
                # Turns are what limits them; and no connection outlives the time to the next tick.
                connector=aiohttp.TCPConnector(limit=0, force_close=True),
                cookie_jar=aiohttp.DummyCookieJar(),
                # Neither side is to compress what does not leave the host.
                headers={"Accept-Encoding": "identity"},
                auto_decompress=False,
            )
        source = target.sources[_ENGINE]
        try:
            async with _turn(self._engine_turns, source, ends_at):
                # The session's engine is not to lead the agent anywhere else.
                async with self._http.get(target.metrics_url, allow_redirects=False) as response:
                    page = await _read_page(response)
                return source.take(await asyncio.to_thread(read_page, page), time.monotonic())
        except (aiohttp.ClientError, OSError, ValueError) as e:
            # Engines take minutes to load a model, so this is the ordinary state at first.
            log.debug("kernel {}: no engine metrics: {}", target.kernel_id, _brief(e))
            return {}

    async def _scrape_inside(
        self, target: _Target, name: str, ends_at: float
    ) -> Mapping[str, float]:
        source = target.sources[name]
        try:
            async with _turn(self._inside_turns, source, ends_at):
                pid = await self._pids.of(target.container_id)
                reading = await asyncio.get_running_loop().run_in_executor(
                    self._insiders, _read_inside, pid, target.inside[name]
                )
                usage = self._usages[target.namespace].usage if target.namespace else None
                block_bytes = usage.block_bytes if usage else None
                return source.take(reading, time.monotonic(), block_bytes)
        except (OSError, ValueError, aiodocker.DockerError) as e:
            log.debug("kernel {}: no page of its {}: {}", target.kernel_id, name, _brief(e))
            self._pids.forget(target.container_id)
            return {}

    async def _transport(self, target: _Target) -> Mapping[str, float]:
        if target.transport is None:
            return {}
        try:
            # Ordinary files are what they are; Docker need not be asked.
            is_gds = target.transport is Transport.GDS
            async with asyncio.timeout(SCRAPE_TIMEOUT_SECONDS):
                pid = await self._pids.of(target.container_id) if is_gds else 0
                effective = await asyncio.to_thread(effective_transport, target.transport, pid)
        except (OSError, aiodocker.DockerError) as e:
            log.debug("kernel {}: its transport cannot be seen: {!r}", target.kernel_id, e)
            self._pids.forget(target.container_id)
            return {}
        return {TRANSPORT: float(effective)}

    async def _folder(self, target: _Target) -> Mapping[str, float]:
        usage = await self._usage(target)
        return {} if usage is None else usage_indicators(usage)

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
