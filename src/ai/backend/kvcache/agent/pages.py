"""Reads the pages of metrics that sessions' engines have, within one deadline for all of them.

What answers is the user's container: it may hang, drip, lie or be something else.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from http import HTTPStatus

import aiodocker
import aiohttp
import attrs
from ai.backend.logging import BraceStyleAdapter

from ..metrics.indicators import LASTING, engine_indicators
from ..metrics.interval import between
from ..metrics.reading import Reading, read_page
from ..metrics.saving import NO_COST, Cost
from .netns import InsidePage, read_inside
from .pids import ContainerPids

log = BraceStyleAdapter(logging.getLogger(__spec__.name))

#: A page that has not come within this, from its turn on, is left out of the tick.
SCRAPE_TIMEOUT_SECONDS = 3.0

#: An engine's page has about 50 KiB for each of its ranks; one of this size is no metrics page.
#: Reading the worst page takes a quarter of a second of a core for each MiB.
MAX_PAGE_BYTES = 4 * 2**20

#: How many engines are asked at the same time.
MAX_CONNECTIONS = 64

#: The same of pages that are seen in a container only, each of which takes a thread.
MAX_INSIDE = 16


@attrs.define
class Source:
    """What one page of a session last said."""

    reading: Reading | None = None
    read_at: float = float("-inf")
    lasting: Mapping[str, float] = attrs.field(factory=dict)
    late: int = 0
    """How many times in a row it did not come in time."""

    def take(
        self,
        reading: Reading,
        now: float,
        block_bytes: float | None = None,
        elsewhere: Cost = NO_COST,
    ) -> Mapping[str, float]:
        """The figures from the reading before to this one.

        Args:
            block_bytes: of a block in the session's folder, in the mean. None: not known.
            elsewhere: the cost of what other engines of the same kind computed.

        Raises:
            ValueError: it is another page: nothing is on it of what was there before.
        """
        if self.reading is not None and self.reading.values and not reading.values:
            raise ValueError("nothing that counts is on the page")
        interval = between(self.reading, reading, now - self.read_at, block_bytes, elsewhere)
        values = engine_indicators(interval)
        if interval.seconds is None:
            # Another engine than the one that was asked before.
            self.lasting = {}
        self.reading, self.read_at = interval.now, now
        self.lasting = {**self.lasting, **{k: v for k, v in values.items() if k in LASTING}}
        return {**self.lasting, **values}


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
async def _turn(turns: asyncio.Semaphore, source: Source, ends_at: float) -> AsyncIterator[None]:
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


def _brief(error: Exception) -> str:
    """What answers is in it, and may be long."""
    return repr(error)[:200]


class PageReader:
    """Asks engines in turns. A page that does not come has no figures, and raises nothing."""

    def __init__(self, pids: ContainerPids) -> None:
        self._pids = pids
        self._http: aiohttp.ClientSession | None = None
        # Of its own: its threads enter network namespaces, and do nothing else.
        self._insiders = ThreadPoolExecutor(MAX_INSIDE, thread_name_prefix="kvcache-netns")
        self._engine_turns = asyncio.Semaphore(MAX_CONNECTIONS)
        self._inside_turns = asyncio.Semaphore(MAX_INSIDE)

    async def close(self) -> None:
        if self._http is not None:
            await self._http.close()
        self._insiders.shutdown(wait=False, cancel_futures=True)

    async def read_engine(
        self, url: str, source: Source, ends_at: float, elsewhere: Cost = NO_COST
    ) -> Mapping[str, float]:
        """The figures of an engine's own page.

        Args:
            source: what it said in earlier ticks.
            ends_at: when the tick is over, in the loop's time.
            elsewhere: the cost of what other engines of the same kind computed.
        """
        if self._http is None:
            self._http = aiohttp.ClientSession(
                # Turns are what limits them; and no connection outlives the time to the next tick.
                connector=aiohttp.TCPConnector(limit=0, force_close=True),
                cookie_jar=aiohttp.DummyCookieJar(),
                # Neither side is to compress what does not leave the host.
                headers={"Accept-Encoding": "identity"},
                auto_decompress=False,
            )
        try:
            async with _turn(self._engine_turns, source, ends_at):
                # The session's engine is not to lead the agent anywhere else.
                async with self._http.get(url, allow_redirects=False) as response:
                    page = await _read_page(response)
                reading = await asyncio.to_thread(read_page, page)
                return source.take(reading, time.monotonic(), elsewhere=elsewhere)
        except (aiohttp.ClientError, OSError, ValueError) as e:
            # Engines take minutes to load a model, so this is the ordinary state at first.
            log.debug("no engine metrics at {}: {}", url, _brief(e))
            return {}

    async def read_inside(
        self,
        container_id: str,
        page: InsidePage,
        source: Source,
        ends_at: float,
        block_bytes: float | None,
    ) -> Mapping[str, float]:
        """The figures of a page that is seen in its container only.

        Args:
            block_bytes: of a block in the session's folder, in the mean. None: not known.
        """
        try:
            async with _turn(self._inside_turns, source, ends_at):
                pid = await self._pids.of(container_id)
                reading = await asyncio.get_running_loop().run_in_executor(
                    self._insiders, _read_inside, pid, page
                )
                return source.take(reading, time.monotonic(), block_bytes)
        except (OSError, ValueError, aiodocker.DockerError) as e:
            log.debug("container {}: no page of {}: {}", container_id[:12], page, _brief(e))
            self._pids.forget(container_id)
            return {}
