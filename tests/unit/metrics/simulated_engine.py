"""An engine whose counters move when vLLM's do, and that knows what loading really saved.

When each of vLLM's counters moves, as read in 0.20.2, 0.32.0 and 0.33.0:

- the tier that cached tokens came from: when the request is scheduled for its load
  (``v1/core/sched/scheduler.py``, ``connector_prefix_cache_stats.record``; 0.32.0 and later);
- tokens by source, and the time to the first token: with the first token
  (``v1/metrics/stats.py``, ``IterationStats.update_from_output``);
- the time between tokens: with each further token (the same);
- queue, prefill, tokens of the prompt and computed tokens: when the request finishes
  (``update_from_finished_request``; ``v1/metrics/loggers.py``, ``PrometheusStatLogger.record``);
- an asynchronous connector loads before ``SCHEDULED``, so that vLLM counts its loads as queueing
  (``WAITING_FOR_REMOTE_KVS`` in ``v1/core/sched/scheduler.py``); one inside the engine's step loads
  after it, so that they count as prefill.

LMCache 0.5.6 counts a lookup when its answer comes (``integration/vllm/lmcache_mp_connector.py``);
LMCache inside vLLM publishes what it has counted every 10 s (``observability.py``).
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

#: Seconds from one publication of LMCache inside vLLM to the next.
PUBLICATION_SECONDS = 10.0


@attrs.frozen
class Request:
    arrival: float
    """Seconds."""
    prompt: int
    """Tokens."""
    answer: int = 1
    """Tokens, of which the first one ends the prefill."""
    found: int = 0
    """Tokens in the engine's own memory."""
    loaded: int = 0
    """Tokens that the connector brings behind them."""
    lookup: float = 0.0
    """Seconds until it is known what can be loaded."""
    load: float = 0.0
    """Seconds that the load takes besides."""

    @property
    def computed(self) -> int:
        return self.prompt - self.found - self.loaded


@attrs.frozen
class Served:
    """One request's times on the engine's clock, in seconds."""

    request: Request
    looked_up: float
    retrieved: float
    scheduled: float
    first_token: float
    finished: float


@attrs.frozen
class Engine:
    """Prefills one request after another; loads and answers go on beside."""

    token_seconds: float
    """To compute one token without attention."""
    step_seconds: float
    """Of a step that computes one token, which each step takes at least."""
    attention: float = 0.0
    """How much more the last token of a context of ``context`` tokens costs, as a share."""
    context: int = 100_000
    loads_in_step: bool = False
    """Whether it is LMCache inside vLLM; else it is LMCache's server."""

    def compute_seconds(self, start: int, tokens: int) -> float:
        """Of tokens that follow ``start`` others."""
        end = start + tokens
        attended = self.attention * (end**2 - start**2) / (2 * self.context)
        return self.token_seconds * (tokens + attended)

    def serve(self, requests: Sequence[Request]) -> tuple[Served, ...]:
        served, free = [], 0.0
        for request in sorted(requests, key=lambda r: r.arrival):
            looked_up = request.arrival + request.lookup
            before, within = (0.0, request.load) if self.loads_in_step else (request.load, 0.0)
            scheduled = max(looked_up + before, free)
            retrieved = scheduled + within if self.loads_in_step else looked_up + before
            cached = request.found + request.loaded
            prefill = self.step_seconds + self.compute_seconds(cached, request.computed)
            first_token = free = scheduled + within + prefill
            finished = first_token + (request.answer - 1) * self.step_seconds
            served.append(Served(request, looked_up, retrieved, scheduled, first_token, finished))
        return tuple(served)

    def saved(self, served: Sequence[Served], now: float) -> float:
        """What loading saved the requests that have finished, less what it took."""
        return sum(
            self.compute_seconds(s.request.found, s.request.loaded)
            - s.request.lookup
            - s.request.load
            for s in served
            if s.finished <= now
        )

    def page(self, served: Sequence[Served], now: float) -> str:
        """The engine's page of metrics at a time."""
        started = [s for s in served if s.first_token <= now]
        done = [s for s in served if s.finished <= now]
        steps = sum(
            min(s.request.answer - 1, int((now - s.first_token) / self.step_seconds))
            for s in started
        )
        samples = {
            "prompt_tokens_total": sum(s.request.prompt for s in started),
            _source("local_compute"): sum(s.request.computed for s in started),
            _source("local_cache_hit"): sum(s.request.found for s in started),
            _source("external_kv_transfer"): sum(s.request.loaded for s in started),
            "time_to_first_token_seconds_count": len(started),
            "time_to_first_token_seconds_sum": sum(
                s.first_token - s.request.arrival for s in started
            ),
            "inter_token_latency_seconds_count": steps,
            "inter_token_latency_seconds_sum": steps * self.step_seconds,
            "request_prefill_time_seconds_count": len(done),
            "request_prefill_time_seconds_sum": sum(s.first_token - s.scheduled for s in done),
            "request_queue_time_seconds_sum": sum(s.scheduled - s.request.arrival for s in done),
            "request_prompt_tokens_sum": sum(s.request.prompt for s in done),
            "request_prefill_kv_computed_tokens_sum": sum(s.request.computed for s in done),
            "num_requests_running": sum(s.scheduled <= now < s.finished for s in served),
            "num_requests_waiting": sum(s.request.arrival <= now < s.scheduled for s in served),
        }
        page = "".join(f"vllm:{name} {value}\n" for name, value in samples.items())
        return page + (_in_process(served, now) if self.loads_in_step else _server(served, now))


def _source(source: str) -> str:
    return f'prompt_tokens_by_source_total{{source="{source}"}}'


def _server(served: Sequence[Served], now: float) -> str:
    seconds = sum(s.request.lookup for s in served if s.looked_up <= now)
    tokens = sum(s.request.loaded for s in served if s.looked_up <= now)
    tiers = "vllm:prompt_tokens_cached_by_source_total"
    return (
        f"vllm:lmcache_mp_lookup_duration_seconds_sum {seconds}\n"
        f'{tiers}{{source="external_unspecified"}} {tokens}\n{tiers}{{source="host"}} 0\n'
    )


def _in_process(served: Sequence[Served], now: float) -> str:
    """Two workers, both of which take part in each load."""
    published = now - now % PUBLICATION_SECONDS
    loads = [s.request for s in served if s.request.loaded and s.retrieved <= published]
    samples = {
        "num_retrieve_requests_total": len(loads),
        "num_store_requests_total": sum(s.first_token <= published for s in served),
        "num_hit_tokens_total": sum(request.loaded for request in loads),
        "time_to_retrieve_sum": sum(request.load for request in loads),
    }
    return "".join(
        f'lmcache:{name}{{worker_id="{worker}"}} {value}\n'
        for name, value in samples.items()
        for worker in (0, 1)
    )
