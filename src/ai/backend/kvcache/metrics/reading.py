"""What one look at an engine's metrics says, whatever the engine and its version call it.

``QUANTITIES`` is the one place that knows metric names. Of several sources the first that a page
has is taken. Left out on purpose:

- ``vllm:prefix_cache_queries``: in vLLM 0.20.2 with LMCache's server it counts more than was asked.
- ``lmcache_mp_l0_*``: they follow a part of the engine's blocks only.

Two of LMCache's server do not mean what they say, and are used for what they do mean:

- ``lmcache_mp_l2_store_completed_requests`` counts stores that failed, too. So it says when nothing
  is under way; what has been begun then and did not become a file has failed.
- ``lmcache_mp_l2_usage_bytes`` is not what the folder holds, but what this process wrote into it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from enum import Enum

import attrs

from .exposition import Sample, read_samples


class Kind(Enum):
    """How a quantity's samples, one for each engine and rank, become one number."""

    COUNTER = "counter"
    """Summed; only its difference to an earlier one says something."""
    MEAN = "mean"
    LEAST = "least"


@attrs.frozen
class Source:
    """One name of a quantity."""

    sample: str
    labels: Mapping[str, str] = attrs.field(factory=dict)
    """That the sample has to carry; it may have more."""


@attrs.frozen
class Quantity:
    """Something that engines count."""

    kind: Kind
    sources: tuple[Source, ...]


def _tokens(vllm_source: str, sglang_source: str | None = None) -> Quantity:
    sources = [Source("vllm:prompt_tokens_by_source_total", {"source": vllm_source})]
    if sglang_source is not None:
        sources.append(Source("sglang:cached_tokens_total", {"cache_source": sglang_source}))
    return Quantity(Kind.COUNTER, tuple(sources))


def _counter(*names: str) -> Quantity:
    return Quantity(Kind.COUNTER, tuple(Source(name) for name in names))


#: Field of Reading → where it comes from. vLLM 0.20 and later; SGLang 0.5.23; LMCache inside vLLM
#: 0.4.4 and later; LMCache's server 0.4.6 and later.
QUANTITIES: Mapping[str, Quantity] = {
    "prompt_tokens": _counter("vllm:prompt_tokens_total", "sglang:prompt_tokens_total"),
    "folder_tokens": _tokens("external_kv_transfer", "storage"),
    "engine_tokens": _tokens("local_cache_hit", "device"),
    "host_tokens": Quantity(
        Kind.COUNTER, (Source("sglang:cached_tokens_total", {"cache_source": "host"}),)
    ),
    "computed_tokens": _tokens("local_compute"),
    "requests": _counter(
        "vllm:time_to_first_token_seconds_count", "sglang:time_to_first_token_seconds_count"
    ),
    "first_token_seconds": _counter(
        "vllm:time_to_first_token_seconds_sum", "sglang:time_to_first_token_seconds_sum"
    ),
    "prefill_seconds": _counter("vllm:request_prefill_time_seconds_sum"),
    "queue_seconds": _counter("vllm:request_queue_time_seconds_sum"),
    "preemptions": _counter("vllm:num_preemptions_total", "sglang:num_retracted_requests_total"),
    "pool_use": Quantity(
        Kind.MEAN, (Source("vllm:kv_cache_usage_perc"), Source("sglang:token_usage"))
    ),
    "loaded_bytes": _counter("lmcache:num_remote_read_bytes_total"),
    "stored_bytes": _counter("lmcache:num_remote_write_bytes_total", "lmcache_mp_l2_usage_bytes"),
    "loads": _counter(
        "lmcache:num_remote_read_requests_total",
        "lmcache_mp_l2_prefetch_load_completed_chunks_total",
    ),
    "loaded_blocks": _counter("lmcache_mp_l2_prefetch_load_completed_chunks_total"),
    "stores": _counter(
        "lmcache:num_remote_write_requests_total",
        "lmcache_mp_l2_store_completed_objects_chunks_total",
    ),
    "store_requests": _counter("lmcache_mp_l2_store_submitted_requests_total"),
    "ended_store_requests": _counter("lmcache_mp_l2_store_completed_requests_total"),
    "stores_begun": _counter("lmcache_mp_l2_store_submitted_objects_chunks_total"),
    "failed_loads": Quantity(
        Kind.COUNTER,
        (
            Source("lmcache:get_blocking_failed_count"),
            Source("lmcache_mp_l2_prefetch_failure_chunks_total", {"reason": "not_found"}),
        ),
    ),
    "failed_stores": _counter("lmcache:put_failed_count"),
    "crowded_out": Quantity(
        Kind.COUNTER,
        (
            Source("lmcache:local_cpu_evict_failed_count_total"),
            Source("lmcache_mp_l2_prefetch_failure_chunks_total", {"reason": "l1_oom"}),
        ),
    ),
    "evicted_blocks": _counter(
        "lmcache:local_cpu_evict_keys_count_total", "lmcache_mp_l1_evicted_chunks_total"
    ),
    # With --kv-cache-metrics only.
    "engine_evicted_blocks": _counter("vllm:kv_block_lifetime_seconds_count"),
    "is_healthy": Quantity(Kind.LEAST, (Source("lmcache:lmcache_is_healthy"),)),
}

#: Of the histogram of first tokens' times.
_BUCKETS = ("vllm:time_to_first_token_seconds_bucket", "sglang:time_to_first_token_seconds_bucket")

_NAMES = frozenset(s.sample for q in QUANTITIES.values() for s in q.sources) | frozenset(_BUCKETS)

#: What answers is the user's container, and may count as it likes: no engine counts more.
_MOST = 1e30

#: Nothing has been counted less often than never; NaN is neither.
_LOWEST: Mapping[Kind, float] = {Kind.COUNTER: 0, Kind.MEAN: -_MOST, Kind.LEAST: -_MOST}

_TOGETHER: Mapping[Kind, Callable[[list[float]], float]] = {
    Kind.COUNTER: math.fsum,
    Kind.MEAN: lambda values: math.fsum(values) / len(values),
    Kind.LEAST: min,
}


@attrs.frozen
class Reading:
    """What was read at one time. Tokens, seconds, bytes and numbers, since the engine started."""

    values: Mapping[str, float]
    """By the keys of QUANTITIES; what no page has is not here."""
    buckets: Mapping[float, float]
    """Seconds → how many first tokens came within them."""

    def __getitem__(self, key: str) -> float | None:
        return self.values.get(key)


def _value(quantity: Quantity, samples: Mapping[str, Sequence[Sample]]) -> float | None:
    for source in quantity.sources:
        values = [
            sample.value
            for sample in samples.get(source.sample, ())
            if source.labels.items() <= sample.labels.items()
        ]
        if values and all(_LOWEST[quantity.kind] <= value <= _MOST for value in values):
            return _TOGETHER[quantity.kind](values)
        if values and quantity.kind is Kind.COUNTER:
            # Left out, it would seem to begin at zero the next time.
            raise ValueError(f"{source.sample} does not count: {values[0]}")
    return None


def _buckets(samples: Mapping[str, Sequence[Sample]]) -> dict[float, float]:
    for name in _BUCKETS:
        buckets: dict[float, float] = {}
        for sample in samples.get(name, ()):
            bound = float(sample.labels.get("le", "nan"))
            if not (abs(bound) <= _MOST or bound == math.inf) or not 0 <= sample.value <= _MOST:
                raise ValueError(f"{name} does not count: {bound}, {sample.value}")
            buckets[bound] = buckets.get(bound, 0) + sample.value
        if buckets:
            return buckets
    return {}


def _failed_stores(values: Mapping[str, float]) -> float | None:
    """Of LMCache's server: what it has begun and not done while nothing is under way.

    None while something is.
    """
    begun, submitted = values.get("stores_begun"), values.get("store_requests")
    if begun is None or submitted is None or submitted != values.get("ended_store_requests"):
        return None
    return begun - values.get("stores", 0)


def read_page(page: str) -> Reading:
    """Reads one page, or several that belong together one behind the other.

    Raises:
        ValueError: a line that matters is not in the text format, or does not count.
    """
    samples: dict[str, list[Sample]] = {}
    for sample in read_samples(page, _NAMES):
        samples.setdefault(sample.name, []).append(sample)
    found = {key: _value(quantity, samples) for key, quantity in QUANTITIES.items()}
    values = {key: value for key, value in found.items() if value is not None}
    if "failed_stores" not in values and (failed := _failed_stores(values)) is not None:
        values["failed_stores"] = failed
    return Reading(values, _buckets(samples))
