from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadScopeScheduling

from ai.backend.kvcache.model.catalog import catalog

# Timing says nothing on a machine that runs a whole cluster beside the tests.
settings.register_profile(
    "suite", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)
settings.load_profile("suite")

#: Folder → whose tests run one after another. Where two run at the same time, it is one of each:
#: the one waits for a cluster most of the time, and the other computes.
GROUPS: Mapping[str, str] = {"engine": "engines", "cluster": "cluster", "browser": "cluster"}


class PartScheduling(LoadScopeScheduling):  # type: ignore[misc]
    """Gives a group's tests to one worker; the files of all others to whoever has nothing to do."""

    def _split_scope(self, nodeid: str) -> str:
        return GROUPS.get(nodeid.split("/")[1], nodeid.partition("::")[0])


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    return PartScheduling(config, log)


DATA = Path(__file__).parent / "data"


@pytest.fixture
def data() -> Path:
    """Files captured from real models and engines."""
    return DATA


@pytest.fixture
def make_folders(tmp_path: Path, data: Path) -> Callable[[str], tuple[Path, Path]]:
    """By a model's name, its folder with a file in the place of weights, and an empty KV folder."""

    def make(name: str) -> tuple[Path, Path]:
        model, kv = tmp_path / "model", tmp_path / "kv"
        model.mkdir()
        kv.mkdir()
        config = data / "models" / f"{name}.config.json"
        (model / "config.json").write_bytes(config.read_bytes())
        (model / "model.safetensors").write_bytes(b"weights")
        return model, kv

    return make


ODD_VALUES: list[Any] = [
    None, True, False, 0, -1, 1, 2, 3, 7, 1000, 2**31, 2**63, 10**9, 1.5, float("nan"),
    float("inf"), "", "auto", "full_attention", [], [None], [0], [-1], ["full_attention"], {},
    {"a": 1}, ["full_attention"] * 1000, list(range(1000)),
]  # fmt: skip


def _mutated(seed: int) -> Iterator[Any]:
    chance = random.Random(seed)
    models = [model.config for model in catalog().values()]
    fields = sorted({
        name for m in models for part in (m, m.get("text_config", {})) for name in part
    })
    for _ in range(300):
        config = json.loads(json.dumps(chance.choice(models)))
        part = config.get("text_config", config) if chance.random() < 0.8 else config
        for _ in range(chance.randint(1, 4)):
            field = chance.choice([*part, *fields])
            match chance.randrange(4):
                case 0:
                    part.pop(field, None)
                case 1:
                    part[field] = chance.choice(ODD_VALUES)
                case 2:
                    other = chance.choice(models)
                    part[field] = other.get("text_config", other).get(field)
                case 3 if type(part.get(field)) is int:
                    part[field] += chance.choice([-1, 1])
        yield config


@pytest.fixture
def mutated_models() -> Callable[[int], Iterator[Any]]:
    """By a seed, 300 configurations of real models with fields taken out, moved and replaced."""
    return _mutated
