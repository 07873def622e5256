"""What loading saved, against an engine that knows it."""

from __future__ import annotations

from pathlib import Path

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ai.backend.kvcache.metrics.reading import read_page
from ai.backend.kvcache.metrics.saving import Cost, cost_of, saved_seconds

from .simulated_engine import Engine, Request

#: Of the agent.
TICK_SECONDS = 30.0

#: Computes a token in 4 ms; a step takes 0.1 s.
SLOW = Engine(token_seconds=0.004, step_seconds=0.1)

COLD = Request(arrival=0, prompt=3000, answer=11)
WARM = Request(arrival=40, prompt=3000, answer=11, loaded=2800, lookup=0.5, load=0.5)


def looks(engine: Engine, requests: list[Request], ticks: int) -> list[float | None]:
    """The figure at each tick."""
    served = engine.serve(requests)
    return [
        saved_seconds(read_page(engine.page(served, TICK_SECONDS * tick)))
        for tick in range(1, ticks + 1)
    ]


class TestSpans:
    """The same two requests, whose answers end after one tick or several.

    Of 3,000 + 200 computed tokens each took 4 ms, besides a step for each request; so what was
    loaded would have taken 2,800 * 4 ms = 11.2 s, and it took 1 s.
    """

    def test_within_one_tick(self) -> None:
        # The first ends at 13.1 s; the second, which begins to load at 40 s, at 42.9 s.
        assert looks(SLOW, [COLD, WARM], 3) == [0.0, pytest.approx(10.2), pytest.approx(10.2)]

    def test_over_two_ticks(self) -> None:
        # The answers have 400 tokens, and so take 40 s: one ends at 52 s, one at 81.8 s.
        requests = [Request(0, 3000, 400), Request(40, 3000, 400, 0, 2800, 0.5, 0.5)]
        assert looks(SLOW, requests, 3) == [0.0, None, pytest.approx(10.2)]

    def test_over_five_ticks(self) -> None:
        # 1,200 tokens: one ends at 132 s, one at 161.8 s.
        requests = [Request(0, 3000, 1200), Request(40, 3000, 1200, 0, 2800, 0.5, 0.5)]
        assert looks(SLOW, requests, 6) == [0.0, None, None, None, None, pytest.approx(10.2)]

    def test_long_and_short_ones_mixed(self) -> None:
        # A long answer goes on from the first tick to the eighth, while two short ones load.
        later = attrs.evolve(WARM, arrival=100.0)
        requests = [Request(0, 3000, 2000), Request(20, 1000, 1), WARM, later]
        # The short one computed 1,000 tokens; the first 3,000 count when they are finished.
        assert looks(SLOW, requests, 8) == [
            0.0,
            *[pytest.approx(10.2)] * 2,
            *[pytest.approx(20.4)] * 3,
            *[pytest.approx(20.4)] * 2,
        ]

    def test_nothing_was_loaded(self) -> None:
        requests = [Request(0, 3000, 1200), Request(40, 3000, 1200)]
        assert looks(SLOW, requests, 7) == [0.0] * 7

    def test_inside_the_engines_step(self) -> None:
        engine = Engine(token_seconds=0.004, step_seconds=0.1, loads_in_step=True)
        # The load counts as prefill: of 12.1 + 1.9 s of prefill, 1 s was the load.
        warm = Request(40, 3000, 11, 0, 2800, 0.0, 1.0)
        assert looks(engine, [COLD, warm], 2) == [0.0, pytest.approx(10.2)]

    def test_load_that_lmcache_has_not_published(self) -> None:
        engine = Engine(token_seconds=0.004, step_seconds=0.1, loads_in_step=True)
        served = engine.serve([COLD, Request(51, 3000, 11, 0, 2800, 0.0, 1.0)])
        # The request ends at 53.9 s, and LMCache publishes at 50 s and at 60 s.
        found = [saved_seconds(read_page(engine.page(served, at))) for at in (55.0, 60.0)]
        assert found == [None, pytest.approx(10.2)]


class TestSign:
    def test_loading_that_does_not_pay(self) -> None:
        # 2,800 * 4 ms are 11.2 s, and the lookup alone took 30 s.
        slow = Request(40, 3000, 11, 0, 2800, lookup=30.0)
        # The two steps count as the tokens': 13 s of prefill for 3,200 tokens.
        assert looks(SLOW, [COLD, slow], 3) == [0.0, 0.0, pytest.approx(13 / 3200 * 2800 - 30.0)]

    def test_not_said_while_requests_are_under_way(self) -> None:
        slow = Request(40, 3000, 1, 0, 2800, lookup=30.0)
        assert looks(SLOW, [COLD, slow, Request(72, 100, 400)], 3)[2] is None

    def test_about_even(self) -> None:
        # 11.2 s saved, 10 s of loading: with tokens of half the cost it would not have paid.
        even = Request(40, 3000, 1, 0, 2800, lookup=5.0, load=5.0)
        assert looks(SLOW, [COLD, even], 2)[1] is None

    def test_queue_that_may_have_been_loading(self) -> None:
        # Five prompts at once: four of them queue for 12 s to 48 s behind each other.
        crowd = [Request(0, 3000) for _ in range(5)]
        assert looks(SLOW, [*crowd, attrs.evolve(WARM, arrival=70.0)], 3)[2] is None

    def test_session_that_computed_ends_of_contexts_only(self) -> None:
        # 20 tokens in a step of 0.1 s do not cost 5 ms each, but what is more than the step.
        served = SLOW.serve([Request(0, 2820, 300, 0, 2800, 0.5, 0.5)])
        saved = saved_seconds(read_page(SLOW.page(served, 60.0)))
        assert saved == pytest.approx(2800 * 0.004 - 1.0)


class TestUnknown:
    PAGE = SLOW.page(SLOW.serve([COLD, WARM]), 60.0)

    @pytest.mark.parametrize(
        "name",
        [
            "vllm:lmcache_mp_lookup_duration_seconds",
            "vllm:request_queue_time_seconds",
            "vllm:request_prefill_time_seconds",
            "vllm:request_prefill_kv_computed_tokens",
            "vllm:request_prompt_tokens",
            'vllm:prompt_tokens_by_source_total{source="external_kv_transfer"}',
            'vllm:prompt_tokens_by_source_total{source="local_cache_hit"}',
        ],
    )
    def test_whatever_is_missing(self, name: str) -> None:
        assert saved_seconds(read_page(self.PAGE)) is not None
        page = "".join(x for x in self.PAGE.splitlines(keepends=True) if not x.startswith(name))
        assert saved_seconds(read_page(page)) is None

    def test_nothing_at_all(self) -> None:
        assert saved_seconds(read_page("")) is None

    @pytest.mark.parametrize(
        "name",
        [
            "vllm-0.20_lmcache-mp-0.4.6_engine",  # Its connector reports no times.
            "vllm-0.32_lmcache-0.5.6_inprocess",  # LMCache has published nothing.
        ],
    )
    def test_pages_without_load_times(self, data: Path, name: str) -> None:
        text = (data / "engine-pages" / f"{name}.prom").read_text()
        assert saved_seconds(read_page(text)) is None


class TestCost:
    def test_of_other_engines(self) -> None:
        # An engine that was started again has computed 200 tokens only, in 10 ms each; the one
        # before it 3,000 in 4 ms each: (12 + 2) / 3,200 * 2,800 - 1.
        engine = Engine(token_seconds=0.010, step_seconds=0.1)
        page = read_page(engine.page(engine.serve([WARM]), 60.0))
        before = Cost(3000.0, 12.0, 12.1)
        assert saved_seconds(page, before) == pytest.approx(14 / 3200 * 2800 - 1.0)

    def test_of_one_engine(self) -> None:
        reading = read_page(SLOW.page(SLOW.serve([Request(0, 3000, 11)]), 60.0))
        cost = cost_of(reading)
        assert cost is not None
        assert attrs.astuple(cost) == pytest.approx((3000.0, 12.0, 12.1))


@st.composite
def _requests(draw: st.DrawFn) -> list[Request]:
    requests = []
    for _ in range(draw(st.integers(1, 8))):
        prompt = draw(st.integers(1, 5000))
        found = draw(st.just(0) | st.integers(0, prompt - 1))
        loaded = draw(st.just(0) | st.integers(0, prompt - found - 1))
        seconds = st.floats(0, 1) | st.floats(0, 60)
        lookup, load = draw(seconds), draw(seconds) if loaded else 0.0
        requests.append(
            Request(
                arrival=draw(st.floats(0, 120)),
                prompt=prompt,
                answer=draw(st.integers(1, 20) | st.integers(1, 1500)),
                found=found,
                loaded=loaded,
                lookup=lookup,
                load=load,
            )
        )
    return requests


@given(
    _requests(),
    st.floats(1e-5, 0.02),
    st.floats(0.005, 0.3),
    st.floats(0, 1),
    st.booleans(),
    st.lists(st.floats(1, 400), min_size=3, max_size=6),
)
def test_never_wrong_in_sign_nor_beyond_its_bounds(
    requests: list[Request],
    token_seconds: float,
    step_seconds: float,
    attention: float,
    loads_in_step: bool,
    times: list[float],
) -> None:
    if loads_in_step:
        # LMCache inside vLLM is asked in the scheduler's step, which takes no time to speak of.
        requests = [attrs.evolve(r, lookup=0.0) for r in requests]
    # The last token of the longest context costs up to twice as much as the first one.
    engine = Engine(token_seconds, step_seconds, attention, 5000, loads_in_step)
    served = engine.serve(requests)
    for time in times:
        reading = read_page(engine.page(served, time))
        saved, truth = saved_seconds(reading), engine.saved(served, time)
        if saved is None or not reading["external_tokens"]:
            continue
        if saved > 0:
            # The tokens cost at least half of what they are counted with, and loading took no
            # longer than what was subtracted for it: between (saved + load) / 2 - load and more.
            taken = reading["retrieve_seconds"] if loads_in_step else reading["queue_seconds"]
            assert taken is not None
            assert truth >= max(0.0, (saved - taken) / 2) - 1e-6
        else:
            assert truth <= 1e-6
