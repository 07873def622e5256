"""What the namespaces of running sessions hold, walked once a minute at most."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Collection
from concurrent.futures import Executor

import attrs
from ai.backend.logging import BraceStyleAdapter

from ..folder.usage import Usage, namespace_usage
from .target import NamespaceOnHost

log = BraceStyleAdapter(logging.getLogger(__spec__.name))

#: Walking a namespace of a million files takes seconds of a file server; once a minute will do.
USAGE_INTERVAL_SECONDS = 60.0

#: A tick waits no longer than this for a walk that is under way.
USAGE_WAIT_SECONDS = 2.0


@attrs.define
class _Known:
    """What a namespace was last known to hold."""

    usage: Usage | None = None
    measured_at: float = float("-inf")
    walk: asyncio.Future[Usage] | None = None


class Usages:
    """Sessions that share a namespace share its walk."""

    def __init__(self, walkers: Executor) -> None:
        self._walkers = walkers
        self._known: dict[NamespaceOnHost, _Known] = {}

    def keep(self, namespaces: Collection[NamespaceOnHost]) -> None:
        """Forgets all others."""
        self._known = {n: self._known.get(n, _Known()) for n in namespaces}

    def last(self, namespace: NamespaceOnHost) -> Usage | None:
        """What was found last, of one that is kept."""
        return self._known[namespace].usage

    async def of(self, namespace: NamespaceOnHost) -> Usage | None:
        """The same, after a walk if one is due and ends in time."""
        known = self._known[namespace]
        now = time.monotonic()
        if known.walk is None and now - known.measured_at >= USAGE_INTERVAL_SECONDS:
            known.walk = asyncio.get_running_loop().run_in_executor(
                self._walkers,
                namespace_usage,
                namespace.folder,
                namespace.name,
                namespace.storage_format,
            )
        if known.walk is not None:
            done, _ = await asyncio.wait({known.walk}, timeout=USAGE_WAIT_SECONDS)
            # Of those that wait for it the first one files it.
            if done and (walk := known.walk) is not None:
                known.walk = None
                known.measured_at = now
                try:
                    known.usage = walk.result()
                except OSError as e:
                    known.usage = None
                    log.warning("namespace {} is not readable: {}", namespace.name, e)
        return known.usage
