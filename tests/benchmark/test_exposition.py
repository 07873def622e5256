"""The time to find what the indicators need on a real page of vLLM. The mark: a fifth of what
prometheus_client takes.

Run with ``./scripts/test benchmark``; both readers stand in one table.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from ai.backend.kvcache.metrics.exposition import read_samples

PAGE = "engine-pages/vllm-0.32_lmcache-mp-0.5.6_engine.prom"

NAMES = frozenset({
    "vllm:prompt_tokens_by_source_total",
    "vllm:kv_cache_usage_perc",
    "vllm:prefix_cache_queries_total",
    "vllm:prefix_cache_hits_total",
    "vllm:external_prefix_cache_queries_total",
    "vllm:external_prefix_cache_hits_total",
    "vllm:num_preemptions_total",
    "vllm:time_to_first_token_seconds_bucket",
    "vllm:time_to_first_token_seconds_sum",
    "vllm:time_to_first_token_seconds_count",
    "vllm:request_prefill_time_seconds_sum",
    "vllm:request_prefill_time_seconds_count",
})

Samples = list[tuple[str, dict[str, str], float]]


def with_prometheus_client(page: str) -> Samples:
    return [
        (sample.name, sample.labels, sample.value)
        for family in text_string_to_metric_families(page)
        for sample in family.samples
        if sample.name in NAMES
    ]


def with_read_samples(page: str) -> Samples:
    return [(name, dict(labels), value) for name, labels, value in read_samples(page, NAMES)]


@pytest.mark.benchmark(group="exposition")
@pytest.mark.parametrize("read", [with_prometheus_client, with_read_samples])
def test_vllm_page(benchmark: Any, data: Path, read: Any) -> None:
    page = (data / PAGE).read_text(encoding="utf-8")
    samples = benchmark(read, page)
    assert {name for name, _, _ in samples} == NAMES
    assert samples == with_prometheus_client(page)
