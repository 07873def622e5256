"""What this host's engines took to compute tokens, also those that have ended.

An engine that was started again finds most of its contexts in the KV folder and computes their ends
only. What computing the rest would have taken is known from the engine before it.
"""

from __future__ import annotations

from collections.abc import Collection

import attrs

from ..metrics.saving import NO_COST, Cost
from .target import NamespaceOnHost

#: Of so many kinds of ended engines, each of which takes some hundred bytes. Then those go first
#: that no session has used for longest.
MAX_KINDS = 1000


@attrs.frozen
class EngineKind:
    """Engines that take equally long: the same model, options and versions on equal hardware."""

    namespace: NamespaceOnHost
    slots: frozenset[tuple[str, str]]
    """Backend.AI's resource slots of the session: name and amount."""


class Costs:
    """Known to this process alone, so that a restarted agent begins anew."""

    def __init__(self) -> None:
        self._running: dict[str, tuple[EngineKind, Cost]] = {}
        self._ended: dict[EngineKind, Cost] = {}

    def keep(self, kernel_ids: Collection[str]) -> None:
        """All other kernels have ended."""
        for kernel_id in self._running.keys() - set(kernel_ids):
            self._end(*self._running.pop(kernel_id))

    def note(self, kernel_id: str, kind: EngineKind, cost: Cost) -> None:
        """What a kernel's engine has computed since it was started."""
        before = self._running.get(kernel_id)
        if before is not None and cost.tokens < before[1].tokens:
            # It was started again.
            self._end(*before)
        self._running[kernel_id] = (kind, cost)

    def elsewhere(self, kernel_id: str, kind: EngineKind) -> Cost:
        """What engines of a kind have computed, besides the one that runs in a kernel."""
        total = self._ended.get(kind, NO_COST)
        for other, (of_kind, cost) in self._running.items():
            if other != kernel_id and of_kind == kind:
                total += cost
        return total

    def _end(self, kind: EngineKind, cost: Cost) -> None:
        # The last one is the one that was used last.
        self._ended[kind] = self._ended.pop(kind, NO_COST) + cost
        if len(self._ended) > MAX_KINDS:
            self._ended.pop(next(iter(self._ended)))
