from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ai.backend.kvcache.metrics.advice import Weight, advise
from ai.backend.kvcache.metrics.indicators import INDICATORS

HOUR = 3600.0


def said(age: float | None = HOUR, **figures: float) -> list[str]:
    return [a.text for a in advise({f"kvcache_{k}": v for k, v in figures.items()}, age)]


@pytest.mark.parametrize(
    ("figures", "text"),
    [
        ({"util": 2, "engine_util": 1}, "hit share 2 % after half an hour"),
        ({"util": 0, "engine_util": 97}, "engine memory serves 97 %: the folder adds nothing"),
        ({"util": 80, "pool_util": 95}, "the pool is full and the folder serves 80 %"),
        ({"util": 80, "pool_util": 10}, "the folder serves 80 % of prompts: working as meant"),
        ({"util": 80}, "working as meant"),
        ({"util": 80, "saved_seconds": -3.2}, "loading took longer than computing"),
        ({"saved_seconds": -3.2, "loaded_tokens": 8448}, "loading took longer than computing"),
        ({"util": 2, "engine_util": 1, "loaded_tokens": 0}, "hit share 2 % after half an hour"),
        ({"crowded_out": 7}, "no room for 7 blocks, which were computed: raise cpu-tier"),
        ({"failed_loads": 2}, "2 loads failed"),
        ({"failed_stores": 4}, "4 stores failed"),
        ({"healthy": 0}, "unhealthy"),
    ],
)
def test_sentences(figures: dict[str, float], text: str) -> None:
    (sentence,) = said(**figures)
    assert text in sentence


@pytest.mark.parametrize(
    "figures",
    [
        {},
        {"util": 30},
        {"engine_util": 97},
        {"healthy": 1, "failed_loads": 0, "failed_stores": 0, "saved_seconds": 0},
        {"pool_util": 95},
        # Nothing was loaded, from the folder at least.
        {"saved_seconds": -3.2, "loaded_tokens": 0},
        # Nobody's context was known in the last interval; others' were before it.
        {"util": 0, "engine_util": 0, "loaded_tokens": 8448, "saved_seconds": 12.5},
    ],
)
def test_nothing_to_say(figures: dict[str, float]) -> None:
    assert said(**figures) == []


def test_how_much_larger_host_memory_is_to_be() -> None:
    (advice,) = advise({"kvcache_crowded_out": 7.0}, HOUR, host_bytes=20 * 2**30)
    assert advice.text.endswith("raise cpu-tier from 20 GiB to 40 GiB")


def test_young_sessions_are_not_judged() -> None:
    assert said(60.0, util=2, engine_util=1) == []
    assert said(None, util=2, engine_util=1) == []


def test_only_the_weightiest() -> None:
    sentences = said(util=80, pool_util=95, failed_loads=1, failed_stores=2, saved_seconds=-1)
    assert len(sentences) == 2
    assert all("failed" in sentence for sentence in sentences)


@given(
    st.dictionaries(st.sampled_from([i.key for i in INDICATORS]), st.floats(-1e9, 1e9)),
    st.none() | st.floats(0, 1e9),
)
def test_any_figures(figures: dict[str, float], age: float | None) -> None:
    weights = {advice.weight for advice in advise(figures, age)}
    assert len(weights) <= 1
    assert weights <= set(Weight)
