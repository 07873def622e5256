"""The time that a plan takes, whatever the model's configuration holds. The mark: 100 ms at most.

Run with ``./scripts/test benchmark``. The well-formed models of the catalog stand beside models of
which fields were taken out, moved and replaced; the column that counts is ``max``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from ai.backend.kvcache.errors import KVCacheError
from ai.backend.kvcache.model.catalog import catalog
from ai.backend.kvcache.model.parallel import Parallel
from ai.backend.kvcache.model.source import ModelSource
from ai.backend.kvcache.plan.sizing import size
from ai.backend.kvcache.plan.sizing_request import SizingRequest


def plan_for(config: Any) -> None:
    model = ModelSource("model", config, "config.json", "benchmark")
    with contextlib.suppress(KVCacheError):
        size(SizingRequest(model=model, parallel=Parallel(2, 2))).to_json()


def measure(benchmark: Any, configs: list[Any]) -> None:
    """Plans for each of them once."""
    following = iter(configs)
    benchmark.pedantic(plan_for, setup=lambda: ((next(following),), {}), rounds=len(configs))


@pytest.mark.benchmark(group="plan")
def test_catalog(benchmark: Any) -> None:
    plan_for({})  # Imports and compiles once.
    measure(benchmark, [model.config for model in catalog().values()])


@pytest.mark.benchmark(group="plan")
def test_mutated(benchmark: Any, mutated_models: Callable[[int], Iterator[Any]]) -> None:
    measure(benchmark, [config for seed in range(20) for config in mutated_models(seed)])
