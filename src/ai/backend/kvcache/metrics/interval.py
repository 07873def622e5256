"""What happened between two readings of one engine."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from .reading import QUANTITIES, Kind, Reading
from .saving import NO_COST, Cost

#: No share, rate or mean is larger.
_MOST = 1e30

_COUNTERS = tuple(key for key, quantity in QUANTITIES.items() if quantity.kind is Kind.COUNTER)


@attrs.frozen
class Interval:
    """The time from one reading to the next."""

    now: Reading
    counted: Mapping[str, float]
    """By how much each counter rose: since the engine's start where there is no reading before this
    one, or the engine was started again in between."""
    buckets: Mapping[float, float]
    """By how much each bucket of first tokens rose, likewise."""
    seconds: float | None
    """None: not known, so that there are no rates, and no counts of single events either: those
    since the engine's start may long be over."""
    block_bytes: float | None = None
    """Of a block in the folder, in the mean, where that is known."""
    cost: Cost = NO_COST
    """Of what other engines computed, of the same model on the same hardware."""

    def rose(self, key: str) -> float | None:
        """By how much a counter rose; None where that is not known."""
        return self.counted.get(key)

    def happened(self, key: str) -> float | None:
        """By how much a counter of events rose, which matter when they happen."""
        return None if self.seconds is None else self.rose(key)

    def per_second(self, key: str) -> float | None:
        """The same as a rate."""
        return ratio(self.rose(key), self.seconds)


def ratio(part: float | None, whole: float | None) -> float | None:
    """One through the other; None where either is not known, or there is nothing to have a part."""
    if part is None or not whole:
        return None
    # What answers is the user's container, and may count as it likes.
    quotient = part / whole
    return quotient if abs(quotient) <= _MOST else None


def _risen[K](before: Mapping[K, float], now: Mapping[K, float]) -> dict[K, float] | None:
    """None: something went down, which counters do only when they begin anew.

    A counter that was not there before had not counted anything yet.
    """
    risen = {key: now[key] - before.get(key, 0) for key in now}
    return None if any(value < 0 for value in risen.values()) else risen


def _with_failures_of(before: Reading, now: Reading) -> Reading:
    """Where the later reading cannot tell how many stores have failed, as many as before."""
    if "failed_stores" in now.values or "failed_stores" not in before.values:
        return now
    failed = {"failed_stores": before.values["failed_stores"]}
    return attrs.evolve(now, values={**failed, **now.values})


def between(
    before: Reading | None,
    now: Reading,
    seconds: float | None,
    block_bytes: float | None = None,
    cost: Cost = NO_COST,
) -> Interval:
    """What happened from one reading to the next.

    Args:
        before: None for the first one; else ``now`` of the interval before, or a page.
        now: the later reading of the same engine.
        seconds: the time between.
        block_bytes: of a block in the folder, in the mean. None: not known.
        cost: of what other engines computed, of the same model on the same hardware.
    """
    if before is not None:
        later = _with_failures_of(before, now)
        counters = {key: later.values[key] for key in _COUNTERS if key in later.values}
        counted = _risen(before.values, counters)
        buckets = _risen(before.buckets, now.buckets)
        if counted is not None and buckets is not None:
            return Interval(later, counted, buckets, seconds, block_bytes, cost)
    counters = {key: now.values[key] for key in _COUNTERS if key in now.values}
    return Interval(now, counters, now.buckets, None, block_bytes, cost)


def quantile(buckets: Mapping[float, float], share: float) -> float | None:
    """A quantile of a histogram, as Prometheus' histogram_quantile estimates it.

    Within a bucket values count as spread evenly; of the last one, without an upper bound, its
    lower bound is taken.

    Args:
        buckets: upper bound → how many lie within it, infinity among them.
        share: from 0 to 1.

    Returns:
        None for an empty histogram.
    """
    bounds = sorted(buckets)
    if not bounds or buckets[bounds[-1]] <= 0:
        return None
    rank = share * buckets[bounds[-1]]
    lower, below = 0.0, 0.0
    for bound in bounds:
        within = buckets[bound]
        if within >= rank:
            if bound == float("inf"):
                return lower
            return lower + (bound - lower) * (rank - below) / (within - below or 1)
        lower, below = bound, within
    return lower
