"""What is reported of a session, and how it follows from vLLM's metrics page.

An indicator that the page does not support is left out; it is never reported as zero.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Literal

import attrs
from prometheus_client.parser import text_string_to_metric_families

from ..folder.usage import Usage

Unit = Literal["percent", "tokens", "bytes", "files"]


@attrs.frozen
class EngineCounters:
    """What the indicators are computed from, summed over the engine's processes.

    None: the page does not have it.
    """

    prompt_tokens: float | None
    folder_tokens: float | None
    """Prompt tokens that the connector brought: from the folder, or from LMCache's memory in front
    of it."""
    engine_tokens: float | None
    """Prompt tokens that were still in the engine's own memory."""
    pool_use: float | None
    """Share of the engine's KV pool in use, 0 … 1."""


def read_counters(page: str) -> EngineCounters:
    """Reads vLLM's metrics page.

    ``vllm:prompt_tokens_by_source_total`` says for each prompt token where its KV came from
    (vLLM 0.20 and later).

    Raises:
        ValueError: the page is not in Prometheus' text format.
    """
    by_source: dict[str, float] = {}
    pool_uses: list[float] = []
    for family in text_string_to_metric_families(page):
        if family.name == "vllm:prompt_tokens_by_source":
            for sample in family.samples:
                if sample.name.endswith("_total"):
                    source = sample.labels.get("source", "")
                    by_source[source] = by_source.get(source, 0) + sample.value
        elif family.name == "vllm:kv_cache_usage_perc":
            pool_uses = [sample.value for sample in family.samples]
    return EngineCounters(
        prompt_tokens=sum(by_source.values()) if by_source else None,
        folder_tokens=by_source.get("external_kv_transfer"),
        engine_tokens=by_source.get("local_cache_hit"),
        pool_use=sum(pool_uses) / len(pool_uses) if pool_uses else None,
    )


def _share(part: float | None, whole: float | None) -> float | None:
    """Percent; unknown while there is nothing to have a share of."""
    return None if part is None or not whole else 100 * part / whole


@attrs.frozen
class Indicator:
    """One reported figure of a session.

    Backend.AI shows a key that ends in ``_util`` as a percentage and one in ``_mem`` as bytes. Its
    WebUI upper-cases the letters "io" in names, which are therefore avoided.
    """

    key: str
    unit: Unit
    meaning: str
    of_engine: Callable[[EngineCounters], float | None] | None = None
    of_usage: Callable[[Usage], float | None] | None = None
    """The one of the two that says it."""


INDICATORS = (
    Indicator(
        "kvcache_util",
        "percent",
        "share of all prompt tokens that the KV folder served",
        lambda c: _share(c.folder_tokens, c.prompt_tokens),
    ),
    Indicator(
        "kvcache_engine_util",
        "percent",
        "share of all prompt tokens that the engine's own memory served",
        lambda c: _share(c.engine_tokens, c.prompt_tokens),
    ),
    Indicator(
        "kvcache_pool_util",
        "percent",
        "share of the engine's KV pool in use",
        lambda c: None if c.pool_use is None else 100 * c.pool_use,
    ),
    Indicator(
        "kvcache_loaded_tokens",
        "tokens",
        "prompt tokens loaded from the KV folder since the engine started",
        lambda c: c.folder_tokens,
    ),
    Indicator(
        "kvcache_mem",
        "bytes",
        "bytes of the session's namespace in the KV folder",
        of_usage=lambda u: u.size,
    ),
    Indicator(
        "kvcache_blocks",
        "files",
        "blocks of contexts in the session's namespace",
        of_usage=lambda u: u.blocks,
    ),
    Indicator(
        "kvcache_unfinished",
        "files",
        "files in it that were begun and not finished, now or by an engine that ended",
        of_usage=lambda u: u.unfinished,
    ),
)


def engine_indicators(
    counters: EngineCounters, indicators: Iterable[Indicator] = INDICATORS
) -> Mapping[str, float]:
    """Indicator key → value, for those that the engine's page supports."""
    values = {i.key: i.of_engine(counters) for i in indicators if i.of_engine is not None}
    return {key: value for key, value in values.items() if value is not None}


def usage_indicators(
    usage: Usage, indicators: Iterable[Indicator] = INDICATORS
) -> Mapping[str, float]:
    """The same for what lies in the folder."""
    values = {i.key: i.of_usage(usage) for i in indicators if i.of_usage is not None}
    return {key: value for key, value in values.items() if value is not None}
