from __future__ import annotations

from pathlib import Path

import pytest

from ai.backend.kvcache.agent import costs as costs_module
from ai.backend.kvcache.agent.costs import Costs, EngineKind
from ai.backend.kvcache.agent.target import NamespaceOnHost
from ai.backend.kvcache.metrics.saving import NO_COST, Cost


def kind(name: str = "a", gpus: str = "1") -> EngineKind:
    namespace = NamespaceOnHost(Path("/kv"), name, "lmcache-mp-fs")
    return EngineKind(namespace, frozenset({("cuda.device", gpus)}))


COLD = Cost(3000.0, 12.0, 12.5)
WARM = Cost(200.0, 1.0, 1.5)


def test_engine_that_has_ended() -> None:
    costs = Costs()
    costs.note("k1", kind(), COLD)
    costs.keep([])
    assert costs.elsewhere("k2", kind()) == COLD


def test_engine_that_was_started_again_in_its_container() -> None:
    costs = Costs()
    costs.note("k1", kind(), COLD)
    costs.note("k1", kind(), WARM)
    assert costs.elsewhere("k1", kind()) == COLD


def test_replicas_that_run() -> None:
    costs = Costs()
    costs.note("k1", kind(), COLD)
    costs.note("k1", kind(), COLD)
    costs.note("k2", kind(), WARM)
    assert costs.elsewhere("k1", kind()) == WARM
    assert costs.elsewhere("k2", kind()) == COLD
    assert costs.elsewhere("k3", kind()) == Cost(3200.0, 13.0, 14.0)


@pytest.mark.parametrize("other", [kind("b"), kind(gpus="2")])
def test_other_models_and_other_hardware(other: EngineKind) -> None:
    costs = Costs()
    costs.note("k1", kind(), COLD)
    costs.note("k2", kind(), WARM)
    costs.keep(["k2"])
    assert costs.elsewhere("k3", other) == NO_COST


def test_what_was_not_used_for_longest_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(costs_module, "MAX_KINDS", 2)
    costs = Costs()
    for name in ("a", "b", "a", "c"):
        costs.note("k", kind(name), COLD)
        costs.keep([])
    assert costs.elsewhere("x", kind("b")) == NO_COST
    assert costs.elsewhere("x", kind("a")) == Cost(6000.0, 24.0, 25.0)
    assert costs.elsewhere("x", kind("c")) == COLD
