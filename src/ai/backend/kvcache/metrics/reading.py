"""What one look at an engine's metrics says, whatever the engine and its version call it.

``QUANTITIES`` is the one place that knows metric names. Of several sources the first that a page
has is taken. At which event vLLM counts what stands in saving.py. Left out on purpose:

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
    WORKERS = "workers"
    """A counter that each worker of an engine keeps for the same event, such as a wait in which all
    of them take part: their mean. It can fall when another worker begins to count."""
    TOTAL = "total"
    """A state, summed."""
    MEAN = "mean"
    LEAST = "least"


@attrs.frozen
class Source:
    """One name of a quantity."""

    sample: str
    labels: Mapping[str, str] = attrs.field(factory=dict)
    """That the sample has to carry; it may have more."""
    prefixes: Mapping[str, str] = attrs.field(factory=dict)
    """Label → how its value has to begin."""

    def fits(self, sample: Sample) -> bool:
        return self.labels.items() <= sample.labels.items() and all(
            sample.labels.get(label, "").startswith(prefix)
            for label, prefix in self.prefixes.items()
        )


@attrs.frozen
class Quantity:
    """Something that engines count."""

    kind: Kind
    sources: tuple[Source, ...]


def _counter(*names: str) -> Quantity:
    return Quantity(Kind.COUNTER, tuple(Source(name) for name in names))


def _labelled(*sources: Source) -> Quantity:
    return Quantity(Kind.COUNTER, sources)


_VLLM_TOKENS = "vllm:prompt_tokens_by_source_total"
_LOADED = "external_kv_transfer"
_VLLM_TIERS = "vllm:prompt_tokens_cached_by_source_total"
_SGLANG_TOKENS = "sglang:cached_tokens_total"

#: Field of Reading → where it comes from. vLLM 0.20 and later; SGLang 0.5.15 and later; LMCache
#: inside vLLM 0.3.15 and later; LMCache's server 0.4.6 and later.
QUANTITIES: Mapping[str, Quantity] = {
    "prompt_tokens": _counter("vllm:prompt_tokens_total", "sglang:prompt_tokens_total"),
    # What vLLM's connector loaded, from whichever tier.
    "external_tokens": _labelled(Source(_VLLM_TOKENS, {"source": _LOADED})),
    # The same by tier, from vLLM 0.32 on; a connector that does not tell its tiers is "unspecified"
    # (vllm/v1/metrics/cache_hit_source.py).
    "disk_tier_tokens": _labelled(Source(_VLLM_TIERS, {"source": "disk"})),
    "host_tier_tokens": _labelled(Source(_VLLM_TIERS, {"source": "host"})),
    "peer_tier_tokens": _labelled(Source(_VLLM_TIERS, {"source": "p2p"})),
    "unspecified_tier_tokens": _labelled(Source(_VLLM_TIERS, {"source": "external_unspecified"})),
    # There where vLLM offloads by itself, which has a tier in host memory always.
    "offloaded_bytes": _counter(
        "vllm:kv_offload_load_bytes_total",
        "vllm:kv_offload_store_bytes_total",
        "vllm:kv_offload_total_bytes_total",
    ),
    "engine_tokens": _labelled(
        Source(_VLLM_TOKENS, {"source": "local_cache_hit"}),
        Source(_SGLANG_TOKENS, {"cache_source": "device"}),
    ),
    # SGLang 0.5.15 names the backend: storage_HiCacheFile, storage_MooncakeStore and so on; 0.5.23
    # does not (srt/observability/metrics_collector.py).
    "storage_tokens": _labelled(
        Source(_SGLANG_TOKENS, {"cache_source": "storage"}),
        Source(_SGLANG_TOKENS, prefixes={"cache_source": "storage_"}),
    ),
    "host_tokens": _labelled(Source(_SGLANG_TOKENS, {"cache_source": "host"})),
    "computed_tokens": _labelled(Source(_VLLM_TOKENS, {"source": "local_compute"})),
    "requests": _counter(
        "vllm:time_to_first_token_seconds_count", "sglang:time_to_first_token_seconds_count"
    ),
    "first_token_seconds": _counter(
        "vllm:time_to_first_token_seconds_sum", "sglang:time_to_first_token_seconds_sum"
    ),
    # Of finished requests.
    "finished_requests": _counter("vllm:request_prefill_time_seconds_count"),
    "prefill_seconds": _counter("vllm:request_prefill_time_seconds_sum"),
    "queue_seconds": _counter("vllm:request_queue_time_seconds_sum"),
    "finished_prompt_tokens": _counter("vllm:request_prompt_tokens_sum"),
    "finished_computed_tokens": _counter("vllm:request_prefill_kv_computed_tokens_sum"),
    # From one token of an answer to the next.
    "steps": _counter("vllm:inter_token_latency_seconds_count"),
    "step_seconds": _counter("vllm:inter_token_latency_seconds_sum"),
    "running_requests": Quantity(Kind.TOTAL, (Source("vllm:num_requests_running"),)),
    "waiting_requests": Quantity(Kind.TOTAL, (Source("vllm:num_requests_waiting"),)),
    # How long requests waited for LMCache's server to say what it has, which takes as long as it
    # takes to bring that from the folder into host memory: LMCache 0.5.6 and later.
    "lookup_seconds": _counter("vllm:lmcache_mp_lookup_duration_seconds_sum"),
    # The same of vLLM's own offloading.
    "deferred_lookup_seconds": _counter("vllm:kv_offload_lookup_async_delay_seconds_sum"),
    # Of LMCache inside vLLM.
    "retrieve_seconds": Quantity(Kind.WORKERS, (Source("lmcache:time_to_retrieve_sum"),)),
    "retrieved_tokens": Quantity(Kind.WORKERS, (Source("lmcache:num_hit_tokens_total"),)),
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

#: LMCache inside vLLM counts in vLLM's workers; another process's page has its names, all at zero.
_IN_PROCESS = "lmcache:"
_RETRIEVES = "lmcache:num_retrieve_requests_total"
_STORES = "lmcache:num_store_requests_total"
#: What it counts of storage. Of GPUDirect Storage it counts none of these.
_READS = ("lmcache:num_remote_read_requests_total", "lmcache:num_remote_read_bytes_total")
_WRITES = ("lmcache:num_remote_write_requests_total", "lmcache:num_remote_write_bytes_total")
_HEALTH = "lmcache:lmcache_is_healthy"

_NAMES = (
    frozenset(s.sample for q in QUANTITIES.values() for s in q.sources)
    | frozenset(_BUCKETS)
    | {_RETRIEVES, _STORES}
)

#: What answers is the user's container, and may count as it likes: no engine counts more.
_MOST = 1e30

#: Nothing has been counted less often than never; NaN is neither.
_LOWEST: Mapping[Kind, float] = {
    Kind.COUNTER: 0,
    Kind.WORKERS: 0,
    Kind.TOTAL: 0,
    Kind.MEAN: -_MOST,
    Kind.LEAST: -_MOST,
}


def _mean(values: list[float]) -> float:
    return math.fsum(values) / len(values)


_TOGETHER: Mapping[Kind, Callable[[list[float]], float]] = {
    Kind.COUNTER: math.fsum,
    Kind.WORKERS: _mean,
    Kind.TOTAL: math.fsum,
    Kind.MEAN: _mean,
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
        values = [s.value for s in samples.get(source.sample, ()) if source.fits(s)]
        if values and all(_LOWEST[quantity.kind] <= value <= _MOST for value in values):
            return _TOGETHER[quantity.kind](values)
        if values and quantity.kind in (Kind.COUNTER, Kind.WORKERS):
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


def _counted(samples: Mapping[str, Sequence[Sample]], name: str) -> float | None:
    """What a counter says; None where the page does not have it."""
    values = [sample.value for sample in samples.get(name, ())]
    # Not checked yet, so it may overflow, which this sum does quietly.
    return sum(values) if values else None


def _without_silent(samples: Mapping[str, Sequence[Sample]]) -> Mapping[str, Sequence[Sample]]:
    """Without what LMCache inside vLLM seems to count and does not.

    Its counters stand at zero on a page that does not come from the workers, which is so without a
    directory of PROMETHEUS_MULTIPROC_DIR, and for the first 10 s with one.
    """
    events = {n: _counted(samples, n) for n in (_RETRIEVES, _STORES, *_READS, *_WRITES)}
    known = [value for value in events.values() if value is not None]
    if known and not any(known):
        return {
            name: found
            for name, found in samples.items()
            if name == _HEALTH or not name.startswith(_IN_PROCESS)
        }
    loaded = [s for s in samples.get(_VLLM_TOKENS, ()) if s.labels.get("source") == _LOADED]
    silent = {
        name
        for has_happened, names in (
            (events[_RETRIEVES] or any(s.value for s in loaded), _READS),
            (events[_STORES], _WRITES),
        )
        if has_happened and events[names[0]] == 0
        for name in names
    }
    return {name: found for name, found in samples.items() if name not in silent}


def read_page(page: str) -> Reading:
    """Reads one page, or several that belong together one behind the other.

    Raises:
        ValueError: a line that matters is not in the text format, or does not count.
    """
    samples: dict[str, list[Sample]] = {}
    for sample in read_samples(page, _NAMES):
        samples.setdefault(sample.name, []).append(sample)
    told = _without_silent(samples)
    found = {key: _value(quantity, told) for key, quantity in QUANTITIES.items()}
    values = {key: value for key, value in found.items() if value is not None}
    if "failed_stores" not in values and (failed := _failed_stores(values)) is not None:
        values["failed_stores"] = failed
    return Reading(values, _buckets(samples))
