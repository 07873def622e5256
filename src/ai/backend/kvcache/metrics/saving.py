"""How many seconds of waiting for first tokens were saved by loading, as far as it can be known.

What is known is the saving of the requests that have finished since the engine started. vLLM counts
at several moments (``v1/metrics/stats.py`` and ``loggers.py``, the same in 0.20.2, 0.32.0 and
0.33.0), so quantities are put together only where they are counted at the same one:

- when a request is scheduled: where its cached tokens came from, by tier;
- when its first token comes: its tokens, by where they came from, and the time to the first token;
- when it finishes: its seconds of queue and of prefill, its tokens, and how many it computed.

Over short times no difference of these says anything: the first token of a request can be counted
minutes before its prefill is. Sums since the engine's start differ by the requests under way only,
and those are bounded here.

The seconds of loading depend on the connector. Asynchronous ones (LMCache's server, vLLM's own
offloading) load while vLLM counts the request as queued, so that the loads of finished requests
took no longer than these requests queued. LMCache inside vLLM loads in the engine's step, which
vLLM counts as prefill. The engine or LMCache reports load times of its own in both cases; where
neither does, the page does not tell which case it is, and nothing is reported.
"""

from __future__ import annotations

import attrs

from .reading import Reading

#: The cost of a token differs between requests: attention makes the end of a long context cost up
#: to twice as much as its mean token. Whether loading paid is said only where it remains true with
#: tokens that cost this many times less, or more, than the mean of those that were computed.
_MARGIN = 2.0


@attrs.frozen
class Cost:
    """What finished requests computed, and how long they were in prefill for it. Can be added."""

    tokens: float
    """Prompt tokens that were computed."""
    least_seconds: float
    """Seconds of prefill, less one step of the engine for each request: a step takes its time
    however few tokens it computes."""
    most_seconds: float
    """Seconds of prefill, all of them."""

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            self.tokens + other.tokens,
            self.least_seconds + other.least_seconds,
            self.most_seconds + other.most_seconds,
        )


#: Of no tokens.
NO_COST = Cost(0.0, 0.0, 0.0)


def cost_of(reading: Reading) -> Cost | None:
    """The cost of what an engine has computed since its start; None where it does not say it."""
    tokens, prefill = reading["finished_computed_tokens"], reading["prefill_seconds"]
    requests = reading["finished_requests"]
    if tokens is None or prefill is None or requests is None:
        return None
    # LMCache inside vLLM loads in the engine's step.
    most = max(0.0, prefill - (reading["retrieve_seconds"] or 0.0))
    steps, seconds = reading["steps"], reading["step_seconds"]
    # Where no answer has had two tokens, all of it may be the step's.
    step = seconds / steps if steps and seconds is not None else most
    return Cost(tokens, max(0.0, most - requests * step), most)


def _load_seconds(reading: Reading) -> tuple[float, float] | None:
    """Bounds of the time that loads took: (least, for all loads; most, for finished requests).

    None: nobody reports it.
    """
    waits = [reading["lookup_seconds"], reading["deferred_lookup_seconds"]]
    known = [seconds for seconds in waits if seconds is not None]
    queued = reading["queue_seconds"]
    if queued is not None and (known or reading["offloaded_bytes"] is not None):
        return sum(known), queued
    retrieving, retrieved = reading["retrieve_seconds"], reading["retrieved_tokens"]
    # LMCache inside vLLM reports up to 10 s late.
    if retrieving is None or retrieved is None or retrieved < (reading["external_tokens"] or 0.0):
        return None
    return retrieving, retrieving


def _finished_loaded_tokens(reading: Reading) -> float | None:
    """Tokens that finished requests loaded: at least so many.

    A finished request's cached tokens were loaded or found in the engine's memory. What was found
    there is counted earlier, so that it may be too much, and the difference too little.
    """
    prompts, computed = reading["finished_prompt_tokens"], reading["finished_computed_tokens"]
    found, loaded = reading["engine_tokens"], reading["external_tokens"]
    if prompts is None or computed is None or found is None or loaded is None:
        return None
    return min(loaded, max(0.0, prompts - computed - found))


def saved_seconds(reading: Reading, elsewhere: Cost = NO_COST) -> float | None:
    """What loading saved the finished requests since the engine's start, less what it took.

    A positive figure is a lower bound, since it takes all queueing for loading where the engine
    does not tell them apart. A negative one is an upper bound, and is given only while no request
    is under way.

    Args:
        elsewhere: the cost of what other engines computed, of the same model on the same hardware.

    Returns:
        Seconds, summed over requests; None where they, or even their sign, cannot be known.
    """
    loaded = reading["external_tokens"]
    of_engine, finished = cost_of(reading), _finished_loaded_tokens(reading)
    if loaded is None or of_engine is None or finished is None:
        return None
    if loaded == 0:
        return 0.0
    cost, seconds = of_engine + elsewhere, _load_seconds(reading)
    if seconds is None:
        return None
    if cost.tokens < 1:
        return None
    least_load, most_load = seconds
    at_least = finished * (cost.least_seconds / cost.tokens)
    if at_least > 0 and at_least >= _MARGIN * most_load:
        return at_least - most_load
    at_most = loaded * (cost.most_seconds / cost.tokens)
    is_idle = reading["running_requests"] == 0 and reading["waiting_requests"] == 0
    if is_idle and least_load > 0 and least_load >= _MARGIN * at_most:
        return at_most - least_load
    return None
