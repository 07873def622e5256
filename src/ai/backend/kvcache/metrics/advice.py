"""What a session's figures mean for whoever runs it: sentences, and when they are said."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import IntEnum

import attrs

from ..sizes import gib

#: Percent. Below it hits are chance; the first turn of every context has none.
FEW_HITS = 5.0

#: Percent. Above it the engine's own memory leaves nothing worth loading.
NEARLY_ALL = 90.0

#: Percent of prompt tokens. From here on the folder does most of the work that there is.
MANY_HITS = 50.0

#: Percent. A pool that is fuller gives up contexts, which the folder then has.
FULL_POOL = 80.0

#: Seconds. Contexts of agents and chats come back within minutes; one that did not after half an
#: hour does not.
LONG_ENOUGH = 30 * 60.0


class Weight(IntEnum):
    """How much a sentence matters; only the weightiest are said. Pages draw them by these names."""

    WORKS = 1
    USELESS = 2
    HARMS = 3
    BROKEN = 4


@attrs.frozen
class Advice:
    """One sentence."""

    key: str
    """Which it is, for those who say it in another language."""
    weight: Weight
    text: str

    def to_json(self) -> dict[str, str]:
        return {"key": self.key, "weight": self.weight.name.lower(), "text": self.text}


type Figures = Mapping[str, float]
"""By the keys of INDICATORS. What is not known is not there."""


@attrs.frozen
class _Rule:
    key: str
    weight: Weight
    text: str
    """With figures in braces."""
    when: Callable[[Figures, float | None], bool]


def _is(figures: Figures, key: str, test: Callable[[float], bool]) -> bool:
    return key in figures and test(figures[key])


_RULES = (
    _Rule(
        "unhealthy",
        Weight.BROKEN,
        "LMCache calls itself unhealthy: nothing is loaded or stored; the session's log says why",
        lambda f, _: _is(f, "kvcache_healthy", lambda v: v == 0),
    ),
    _Rule(
        "failed-stores",
        Weight.BROKEN,
        "{kvcache_failed_stores:.0f} stores failed: the folder may be full or not writable",
        lambda f, _: _is(f, "kvcache_failed_stores", lambda v: v > 0),
    ),
    _Rule(
        "failed-loads",
        Weight.BROKEN,
        "{kvcache_failed_loads:.0f} loads failed and were computed: look at the storage",
        lambda f, _: _is(f, "kvcache_failed_loads", lambda v: v > 0),
    ),
    _Rule(
        "slower",
        Weight.HARMS,
        "loading took longer than computing would have ({kvcache_saved_seconds:.1f} s): use faster "
        "storage, or switch off",
        lambda f, _: (
            _is(f, "kvcache_saved_seconds", lambda v: v < 0) and f.get("kvcache_loaded_tokens") != 0
        ),
    ),
    _Rule(
        "crowded-out",
        Weight.HARMS,
        "host memory had no room for {kvcache_crowded_out:.0f} blocks, which were computed: raise "
        "cpu-tier{larger_tier}",
        lambda f, _: _is(f, "kvcache_crowded_out", lambda v: v > 0),
    ),
    _Rule(
        "engine-serves-all",
        Weight.USELESS,
        "engine memory serves {kvcache_engine_util:.0f} %: the folder adds nothing now",
        lambda f, _: (
            _is(f, "kvcache_engine_util", lambda v: v >= NEARLY_ALL)
            and _is(f, "kvcache_util", lambda v: v < FEW_HITS)
        ),
    ),
    _Rule(
        "not-revisited",
        Weight.USELESS,
        "hit share {kvcache_util:.0f} % after half an hour: contexts are not revisited; switch off",
        lambda f, age: (
            age is not None
            and age >= LONG_ENOUGH
            # The shares are of the last interval alone, which says nothing of those before it.
            and not f.get("kvcache_loaded_tokens")
            and _is(f, "kvcache_util", lambda v: v < FEW_HITS)
            and _is(f, "kvcache_engine_util", lambda v: v < FEW_HITS)
        ),
    ),
    _Rule(
        "works-with-full-pool",
        Weight.WORKS,
        "the pool is full and the folder serves {kvcache_util:.0f} %: working as meant",
        lambda f, _: (
            _is(f, "kvcache_util", lambda v: v >= MANY_HITS)
            and _is(f, "kvcache_pool_util", lambda v: v >= FULL_POOL)
        ),
    ),
    _Rule(
        "works",
        Weight.WORKS,
        "the folder serves {kvcache_util:.0f} % of prompts: working as meant",
        lambda f, _: (
            _is(f, "kvcache_util", lambda v: v >= MANY_HITS)
            and not _is(f, "kvcache_pool_util", lambda v: v >= FULL_POOL)
        ),
    ),
)

#: Of all sentences that there are.
ADVICE_KEYS = frozenset(rule.key for rule in _RULES)


def _larger(tier: int | None) -> str:
    """Twice as much: what a tier has no room for says nothing of how much there is."""
    return f" from {gib(tier)} to {gib(2 * tier)}" if tier else ""


def advise(
    figures: Figures, age: float | None = None, host_bytes: int | None = None
) -> tuple[Advice, ...]:
    """What is to be said, the weightiest alone.

    Args:
        figures: of one session.
        age: seconds since the session started; None where it is not known.
        host_bytes: of the host memory that its plan has between GPU and folder. None: not known.

    Returns:
        Nothing where the figures do not say enough.
    """
    said = [rule for rule in _RULES if rule.when(figures, age)]
    weightiest = max((rule.weight for rule in said), default=None)
    words = {**figures, "larger_tier": _larger(host_bytes)}
    return tuple(
        Advice(rule.key, rule.weight, rule.text.format_map(words))
        for rule in said
        if rule.weight is weightiest
    )
