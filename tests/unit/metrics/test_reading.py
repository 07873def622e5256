"""Pages that anybody may have written."""

from __future__ import annotations

import contextlib
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ai.backend.kvcache.metrics.indicators import engine_indicators
from ai.backend.kvcache.metrics.interval import between
from ai.backend.kvcache.metrics.reading import _BUCKETS, QUANTITIES, Reading, read_page

NUMBERS = ["NaN", "+Inf", "-Inf", "0", "-1", "1e-320", "1e30", "-1e30", "1e31", "1.7e308", "1e999"]
VALUES = st.sampled_from(NUMBERS) | st.floats(0, 1e15).map(repr)


def _lines() -> st.SearchStrategy[str]:
    """Of every name that is looked for, with the labels that are looked for, or with others."""
    sources = [source for quantity in QUANTITIES.values() for source in quantity.sources]
    heads = [
        source.sample + "{" + ",".join(f'{k}="{v}"' for k, v in source.labels.items()) + "}"
        for source in sources
    ]
    counted = st.builds(lambda head, value: f"{head} {value}\n", st.sampled_from(heads), VALUES)
    bucket = st.builds(
        lambda name, bound, value: f'{name}{{le="{bound}"}} {value}\n',
        st.sampled_from(_BUCKETS),
        VALUES,
        VALUES,
    )
    return counted | bucket


PAGES = st.lists(_lines(), max_size=20).map("".join)


@given(st.lists(PAGES, min_size=2, max_size=4))
def test_any_pages_give_finite_figures_or_none(pages: list[str]) -> None:
    before: Reading | None = None
    for page in pages:
        # What is no page is left out, as the agent does.
        with contextlib.suppress(ValueError):
            interval = between(before, read_page(page), 30, block_bytes=4096)
            before = interval.now
            figures = engine_indicators(interval)
            assert all(map(math.isfinite, figures.values())), figures


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-Inf", "1e31", "1e999", "-1"])
def test_counter_that_does_not_count(value: str) -> None:
    """Left out, it would count everything since the engine's start when it is back."""
    with pytest.raises(ValueError, match="vllm:prompt_tokens_total does not count"):
        read_page(f"vllm:prompt_tokens_total {value}\nvllm:num_preemptions_total 1\n")


def test_state_that_is_none_is_left_out() -> None:
    page = "vllm:kv_cache_usage_perc NaN\nvllm:num_preemptions_total 1\n"
    assert read_page(page).values == {"preemptions": 1}


@pytest.mark.parametrize("value", ["NaN", "-1"])
def test_bucket_that_does_not_count(value: str) -> None:
    with pytest.raises(ValueError, match="does not count"):
        read_page(f'vllm:time_to_first_token_seconds_bucket{{le="1"}} {value}\n')


@pytest.mark.parametrize("labels", ["", '{le="NaN"}', '{le="-Inf"}', '{le="x"}'])
def test_bucket_without_bound(labels: str) -> None:
    with pytest.raises(ValueError, match=r"does not count|could not convert"):
        read_page(f"vllm:time_to_first_token_seconds_bucket{labels} 1\n")


def test_stores_of_a_server_that_does_not_say_what_is_under_way() -> None:
    page = "lmcache_mp_l2_store_submitted_objects_chunks_total 7\n"
    assert read_page(page).values == {"stores_begun": 7}


def test_counters_of_lmcache_that_overflow() -> None:
    line = "lmcache:num_retrieve_requests_total 1.7e308\n"
    assert read_page(2 * line).values == {}
