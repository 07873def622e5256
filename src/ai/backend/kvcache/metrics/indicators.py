"""What is reported of a session: one table of figures, and how each follows from what was read.

A figure that cannot be known is left out; it is never reported as zero.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum

import attrs

from ..folder.usage import Usage
from .interval import Interval, quantile, ratio
from .saving import saved_seconds
from .tiers import folder_tokens, folder_tokens_since_start, found_tokens, host_tokens


class Unit(StrEnum):
    """What a figure is in."""

    PERCENT = "percent"
    TOKENS = "tokens"
    BYTES = "bytes"
    BYTES_PER_SECOND = "bytes_per_second"
    FILES = "files"
    SECONDS = "seconds"
    COUNT = "count"
    PER_SECOND = "per_second"
    YES = "yes"
    """1 or 0."""
    CODE = "code"
    """A number that stands for something, which the meaning says."""


type _OfInterval = Callable[[Interval], float | None]
type _OfUsage = Callable[[Usage], float | None]


@attrs.frozen
class Indicator:
    """One reported figure of a session.

    Backend.AI shows a key that ends in ``_util`` as a percentage and one in ``_mem`` as bytes. Its
    WebUI upper-cases the letters "io" in names, which are therefore avoided.
    """

    key: str
    unit: Unit
    meaning: str
    of_interval: _OfInterval | None = None
    of_usage: _OfUsage | None = None
    """The one of the two that says it; none of them for what the agent itself sees."""
    lasts: bool = False
    """Whether it stands until there is a new one: while nobody asks, nothing new can be said of
    requests, and what was said of the last ones stays true."""


def _percent(part: float | None, whole: float | None) -> float | None:
    share = ratio(part, whole)
    return None if share is None else 100 * share


def _share_of_prompts(tokens: _OfInterval) -> _OfInterval:
    return lambda i: _percent(tokens(i), i.rose("prompt_tokens"))


def _computed_tokens(interval: Interval) -> float | None:
    computed = interval.rose("computed_tokens")
    prompts = interval.rose("prompt_tokens")
    if computed is not None or prompts is None:
        return computed
    # SGLang counts what it found.
    found = found_tokens(interval)
    return None if found is None else prompts - found


def _is_cold(interval: Interval) -> bool | None:
    """Whether all requests of the interval found nothing, or the only one found something.

    None: some may have and others not, which a page does not tell apart.
    """
    found = found_tokens(interval)
    requests = interval.rose("requests")
    if interval.rose("engine_tokens") is None or found is None or not requests:
        return None
    if not found:
        return True
    return False if requests == 1 else None


def _first_token(share: float, *, cold: bool | None = None) -> _OfInterval:
    def of(interval: Interval) -> float | None:
        if cold is not None and _is_cold(interval) is not cold:
            return None
        return quantile(interval.buckets, share)

    return of


def _pool(interval: Interval) -> float | None:
    use = interval.now["pool_use"]
    return None if use is None else 100 * use


def _loaded_bytes(interval: Interval) -> float | None:
    counted, blocks = interval.rose("loaded_bytes"), interval.rose("loaded_blocks")
    if counted is not None or blocks is None or interval.block_bytes is None:
        return counted
    # LMCache's server counts blocks only.
    return blocks * interval.block_bytes


#: What has a capacity, where the policy caps the folder.
FOLDER_SIZE = "kvcache_mem"

#: What the agent sees by itself.
TRANSPORT = "kvcache_transport"

INDICATORS = (
    Indicator(
        "kvcache_util",
        Unit.PERCENT,
        "share of prompt tokens that the KV folder served",
        _share_of_prompts(folder_tokens),
        lasts=True,
    ),
    Indicator(
        "kvcache_engine_util",
        Unit.PERCENT,
        "share of prompt tokens that the engine's own memory served",
        _share_of_prompts(lambda i: i.rose("engine_tokens")),
        lasts=True,
    ),
    Indicator(
        "kvcache_host_util",
        Unit.PERCENT,
        "share of prompt tokens that host memory served, where the engine says it",
        _share_of_prompts(host_tokens),
        lasts=True,
    ),
    Indicator(
        "kvcache_computed_util",
        Unit.PERCENT,
        "share of prompt tokens that were computed",
        _share_of_prompts(_computed_tokens),
        lasts=True,
    ),
    Indicator(
        "kvcache_pool_util",
        Unit.PERCENT,
        "share of the engine's KV pool in use",
        _pool,
    ),
    Indicator(
        "kvcache_loaded_tokens",
        Unit.TOKENS,
        "prompt tokens loaded from the KV folder since the engine started",
        folder_tokens_since_start,
    ),
    Indicator(
        "kvcache_saved_seconds",
        Unit.SECONDS,
        "prefill time saved by what finished requests loaded since the engine started, less the "
        "time that loading took",
        lambda i: saved_seconds(i.now, i.cost),
        lasts=True,
    ),
    Indicator(
        "kvcache_load_rate",
        Unit.BYTES_PER_SECOND,
        "bytes loaded from the KV folder",
        lambda i: ratio(_loaded_bytes(i), i.seconds),
    ),
    Indicator(
        "kvcache_load_mem",
        Unit.BYTES,
        "mean size of one load",
        lambda i: ratio(_loaded_bytes(i), i.rose("loads")),
        lasts=True,
    ),
    Indicator(
        "kvcache_store_rate",
        Unit.BYTES_PER_SECOND,
        "bytes stored in the KV folder",
        lambda i: i.per_second("stored_bytes"),
    ),
    Indicator(
        "kvcache_store_mem",
        Unit.BYTES,
        "mean size of one store",
        lambda i: ratio(i.rose("stored_bytes"), i.rose("stores")),
        lasts=True,
    ),
    Indicator(
        "kvcache_first_token_p50",
        Unit.SECONDS,
        "median time to the first token",
        _first_token(0.5),
        lasts=True,
    ),
    Indicator(
        "kvcache_first_token_p95",
        Unit.SECONDS,
        "time within which 95 % of first tokens came",
        _first_token(0.95),
        lasts=True,
    ),
    Indicator(
        "kvcache_first_token_cold",
        Unit.SECONDS,
        "median time to the first token of contexts that were new",
        _first_token(0.5, cold=True),
        lasts=True,
    ),
    Indicator(
        "kvcache_first_token_warm",
        Unit.SECONDS,
        "time to the first token of a context that was seen before",
        _first_token(0.5, cold=False),
        lasts=True,
    ),
    Indicator(
        "kvcache_preempted",
        Unit.COUNT,
        "requests that the engine interrupted for want of memory",
        lambda i: i.happened("preemptions"),
    ),
    Indicator(
        "kvcache_evicted_rate",
        Unit.PER_SECOND,
        "blocks that had to leave host memory",
        lambda i: i.per_second("evicted_blocks"),
    ),
    Indicator(
        "kvcache_engine_evicted_rate",
        Unit.PER_SECOND,
        "blocks that had to leave the engine's own memory, where vLLM runs with --kv-cache-metrics",
        lambda i: i.per_second("engine_evicted_blocks"),
    ),
    Indicator(
        "kvcache_crowded_out",
        Unit.COUNT,
        "blocks that host memory had no room for",
        lambda i: i.happened("crowded_out"),
    ),
    Indicator(
        "kvcache_failed_loads",
        Unit.COUNT,
        "loads that failed",
        lambda i: i.happened("failed_loads"),
    ),
    Indicator(
        "kvcache_failed_stores",
        Unit.COUNT,
        "stores that failed",
        lambda i: i.happened("failed_stores"),
    ),
    Indicator(
        "kvcache_healthy",
        Unit.YES,
        "whether LMCache calls itself healthy",
        lambda i: i.now["is_healthy"],
    ),
    Indicator(
        TRANSPORT,
        Unit.CODE,
        "how the folder is read: 1 ordinary files, 2 GPUDirect Storage in its compatible mode, "
        "through host memory, 3 GPUDirect Storage",
    ),
    Indicator(
        FOLDER_SIZE,
        Unit.BYTES,
        "bytes of the session's namespace in the KV folder",
        of_usage=lambda u: u.size,
    ),
    Indicator(
        "kvcache_files",
        Unit.FILES,
        "files in the session's namespace, of whatever kind",
        of_usage=lambda u: u.files,
    ),
    Indicator(
        "kvcache_blocks",
        Unit.FILES,
        "blocks of contexts in the session's namespace",
        of_usage=lambda u: u.blocks,
    ),
    Indicator(
        "kvcache_unfinished",
        Unit.FILES,
        "files in it that were begun and not finished, now or by an engine that ended",
        of_usage=lambda u: u.unfinished,
    ),
    Indicator(
        "kvcache_oldest_seconds",
        Unit.SECONDS,
        "age of the oldest block in the session's namespace",
        of_usage=lambda u: u.oldest_seconds,
    ),
)


#: Those that stand.
LASTING = frozenset(indicator.key for indicator in INDICATORS if indicator.lasts)


def engine_indicators(
    interval: Interval, indicators: Iterable[Indicator] = INDICATORS
) -> Mapping[str, float]:
    """Indicator key → value, for those that the engine's pages support."""
    values = {i.key: i.of_interval(interval) for i in indicators if i.of_interval is not None}
    return {key: value for key, value in values.items() if value is not None}


def usage_indicators(
    usage: Usage, indicators: Iterable[Indicator] = INDICATORS
) -> Mapping[str, float]:
    """The same for what lies in the folder."""
    values = {i.key: i.of_usage(usage) for i in indicators if i.of_usage is not None}
    return {key: value for key, value in values.items() if value is not None}
