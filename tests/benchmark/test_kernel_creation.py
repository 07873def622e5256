"""The time that the plugin adds to the creation of a kernel. The mark: a median of 30 ms.

Run with ``./scripts/test benchmark``. All cases stand in one table: a session without KV cache, to
compare with; one whose model the agent has seen before; one whose model is new to the agent; and
one whose model's files must come from the disk besides.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
from collections.abc import Callable, Iterator
from copy import deepcopy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ai.backend.agent.agent import AbstractKernelCreationContext

from ai.backend.kvcache.agent.plugin import KVCachePlugin
from ai.backend.kvcache.model import fingerprint

WEIGHT_FILES = 50
WEIGHT_BYTES = 4 * 2**20

_LABELS = {
    "ai.backend.kvcache.engine-version": "0.32.0",
    "ai.backend.kvcache.lmcache-version": "0.5.6",
}
_DEFINITION = {
    "models": [
        {
            "model_path": "/models",
            "service": {
                "start_command": ["bash", "-c", "exec vllm serve /models -tp 1 2>&1 | tee log"]
            },
        }
    ]
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder with 50 weight files, on the disk that holds temporary files."""
    directory = tmp_path_factory.mktemp("model")
    config = Path(__file__).parents[1] / "data/models/devstral-2-123b.config.json"
    (directory / "config.json").write_bytes(config.read_bytes())
    (directory / "tokenizer.json").write_bytes(os.urandom(2 * 2**20))
    for shard in range(WEIGHT_FILES):
        name = f"model-{shard + 1:05}-of-{WEIGHT_FILES:05}.safetensors"
        (directory / name).write_bytes(os.urandom(WEIGHT_BYTES))
    os.sync()
    return directory


@pytest.fixture
def create(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[bool], None]]:
    """Runs the plugin's callbacks for one kernel, as the agent's mount_krunner calls them."""
    loop = asyncio.new_event_loop()
    plugin = KVCachePlugin({}, {"container": {"scratch-root": tmp_path}})
    kv_folder = tmp_path / "kv"
    kv_folder.mkdir()
    numbers = itertools.count()

    no_docker: Any = None  # The plugin never calls it.

    async def mount_krunner(self: Any, resource_spec: Any, environ: Any) -> None:
        await plugin.generate_docker_args(no_docker, {})
        source_path = tmp_path / self.kernel_id / "config" / "kvcache"
        source_path.mkdir(parents=True)
        await plugin.generate_mounts(source_path, {})

    monkeypatch.setattr(AbstractKernelCreationContext, "mount_krunner", mount_krunner)
    loop.run_until_complete(plugin.init())

    def create_kernel(with_kv_cache: bool) -> None:
        mounts = [
            {"name": "model", "host_path": model, "kernel_path": "/models",
             "mount_perm": "ro", "usage_mode": "model"},
            {"name": "kv", "host_path": kv_folder, "kernel_path": "/kvcache",
             "mount_perm": "rw", "usage_mode": "general"},
        ]  # fmt: skip
        context = SimpleNamespace(
            kernel_id=f"k{next(numbers)}",
            computers={},
            kernel_config={
                "mounts": mounts if with_kv_cache else mounts[:1],
                "image": {"canonical": "image", "labels": _LABELS},
                # The plugin changes the start command in its place.
                "internal_data": {"model_definition": deepcopy(_DEFINITION)},
            },
        )
        method: Any = AbstractKernelCreationContext.mount_krunner
        loop.run_until_complete(method(context, SimpleNamespace(allocations={}), {}))
        plan = tmp_path / context.kernel_id / "config" / "kvcache" / "plan.json"
        # One that is declined takes no time, and says nothing.
        assert plan.exists() is with_kv_cache
        assert not with_kv_cache or json.loads(plan.read_text())["kv_cache"] is True

    yield create_kernel
    loop.run_until_complete(plugin.cleanup())
    loop.close()


def _forget() -> None:
    fingerprint._fingerprint.cache_clear()


def _forget_and_drop(model: Path) -> None:
    _forget()
    for path in model.iterdir():
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def test_without_kv_cache(benchmark: Any, create: Callable[[bool], None]) -> None:
    benchmark.pedantic(create, args=(False,), rounds=50, warmup_rounds=2)


def test_model_seen_before(benchmark: Any, create: Callable[[bool], None]) -> None:
    benchmark.pedantic(create, args=(True,), rounds=50, warmup_rounds=2)


def test_model_new_to_the_agent(benchmark: Any, create: Callable[[bool], None]) -> None:
    benchmark.pedantic(create, args=(True,), setup=_forget, rounds=50, warmup_rounds=2)


def test_model_new_and_on_disk(benchmark: Any, create: Callable[[bool], None], model: Path) -> None:
    benchmark.pedantic(
        create, args=(True,), setup=lambda: _forget_and_drop(model), rounds=20, warmup_rounds=1
    )
