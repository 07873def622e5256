"""What loading saved, as a real engine's counters tell it, beside what a client's clock tells.

An engine computes a prompt, a second one loads it, and both answer for longer than it takes the
agent to look several times. The agent's looks are 30 s apart; here they are closer together, so
that a request of less than a minute spans more of them.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager

import attrs
import pytest

from ai.backend.kvcache.metrics.advice import advise
from ai.backend.kvcache.metrics.indicators import engine_indicators
from ai.backend.kvcache.metrics.interval import between
from ai.backend.kvcache.metrics.reading import Reading, read_page
from ai.backend.kvcache.metrics.saving import NO_COST, Cost, cost_of
from devcluster.completion import Answer
from devcluster.models import TIMING_MODEL, make_tiny_model
from devcluster.tinytext import long_prompt

from .engine_container import EngineContainer
from .session_container import prepared, running_session, session_of

_PROMPT = long_prompt(3000, seed=7)
_OTHER_PROMPT = long_prompt(1500, seed=8)
_LOOK_SECONDS = 1.0
#: From ten seconds to a minute: a token takes from 0.03 s on an idle machine to 0.2 s.
_ANSWER_TOKENS = 300


@attrs.frozen
class Visit:
    """One prompt, or several at once, from before the request until all are answered."""

    answer: Answer
    """Of the first prompt."""
    looks: tuple[dict[str, float], ...]
    """The figures at each look; the last one is after all requests."""
    cost: Cost
    """Of all that the engine has computed."""

    @property
    def saved(self) -> list[float | None]:
        return [look.get("kvcache_saved_seconds") for look in self.looks]


def visit(engine: EngineContainer, *prompts: str, elsewhere: Cost = NO_COST) -> Visit:
    """Asks all prompts at once, and looks until they are answered.

    Args:
        elsewhere: the cost of what other engines have computed.
    """
    before: Reading | None = None
    looks: list[dict[str, float]] = []

    def look() -> Reading:
        now = read_page(engine.page())
        interval = between(before, now, _LOOK_SECONDS, cost=elsewhere)
        looks.append(dict(engine_indicators(interval)))
        return now

    with ThreadPoolExecutor(len(prompts)) as pool:
        before = look()
        asked = [pool.submit(engine.complete, p, tokens=_ANSWER_TOKENS) for p in prompts]
        while not all(future.done() for future in asked):
            time.sleep(_LOOK_SECONDS)
            before = look()
    # Gauges are set a step late, and there is no step after the last request.
    time.sleep(1)
    cost = cost_of(look())
    assert cost is not None
    return Visit(asked[0].result(), tuple(looks), cost)


@attrs.frozen
class Visits:
    cold: Visit
    """Of an engine whose folder is empty."""
    warm: Visit
    """Of the next engine, by the same prompt."""
    mixed: Visit
    """Of that one, by the same prompt, which it has in its memory now, and a new one."""


@pytest.fixture(scope="module")
def visits(image: str, tmp_path_factory: pytest.TempPathFactory) -> Visits:
    model, folder = tmp_path_factory.mktemp("timing-model"), tmp_path_factory.mktemp("kv-folder")
    make_tiny_model(model, [*TIMING_MODEL, "--seed", "1"], image=image)
    arguments = ("--dtype", "float32", "--max-model-len", "8192")

    def engine() -> AbstractContextManager[EngineContainer]:
        session = session_of(model, folder, at="/models", arguments=arguments)
        config = tmp_path_factory.mktemp("config")
        return running_session(image, session, prepared(session), config)

    with engine() as first:
        cold = visit(first, _PROMPT)
    with engine() as second:
        warm = visit(second, _PROMPT, elsewhere=cold.cost)
        mixed = visit(second, _PROMPT, _OTHER_PROMPT, elsewhere=cold.cost)
    return Visits(cold, warm, mixed)


def test_each_answer_spans_several_looks(visits: Visits) -> None:
    # The first look is before the request, and the last one after it.
    assert all(len(v.looks) >= 7 for v in (visits.cold, visits.warm, visits.mixed))


def test_engine_that_loads_nothing_saves_nothing(visits: Visits) -> None:
    assert visits.cold.saved == [0.0] * len(visits.cold.looks)


def test_no_look_finds_that_loading_cost_time(visits: Visits) -> None:
    looks = visits.warm.looks + visits.mixed.looks
    assert looks[-1]["kvcache_loaded_tokens"] >= 2048
    assert all(look.get("kvcache_saved_seconds", 0.0) >= 0 for look in looks)
    assert "slower" not in {a.key for look in looks for a in advise(look, age=60.0)}


def test_is_what_the_clients_clock_tells(visits: Visits) -> None:
    """The figure is a lower bound, and is there where the client's clock leaves no doubt.

    The cost of a token is at least nine tenths of the cold first token over the whole prompt, and
    loading took no longer than the warm first token. So the condition below means that computing
    would have taken more than twice as long as loading, which is when the figure is given.
    """
    cold, warm = visits.cold.answer, visits.warm.answer
    difference = cold.first_token_seconds - warm.first_token_seconds
    last = visits.warm.saved[-1]
    if cold.first_token_seconds > 4 * warm.first_token_seconds:
        assert last is not None
    if last is not None:
        assert 0.5 * difference <= last <= 1.3 * difference
