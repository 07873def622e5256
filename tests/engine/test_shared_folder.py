"""What a folder does for a real engine, and what it does to one that should not have had it.

Four engines, one after the other. Each starts once, answers the same prompt once, and is removed.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from ai.backend.kvcache.engine.adapter import EngineRequest
from ai.backend.kvcache.engine.lmcache_mp import LMCacheMultiProcess
from devcluster.completion import Answer
from devcluster.tinytext import long_prompt

from .engine_container import FOLDER_PATH, running_engine

_CHUNK_TOKENS = LMCacheMultiProcess.chunk_tokens
_PROMPT = long_prompt(3000, seed=1)
_STORE_SECONDS = 30.0


@dataclass(frozen=True)
class Visit:
    """One engine's life: what it answered, what it took from the folder and what lay there then."""

    answer: Answer
    loaded_tokens: float
    files: frozenset[str]

    @property
    def loaded_share(self) -> float:
        return self.loaded_tokens / self.answer.prompt_tokens


type Visitor = Callable[[Path, str], Visit]
"""Starts an engine with a model and the name of a namespace."""


def engine_config(storage: PurePosixPath) -> dict[str, Any]:
    """vLLM's config file as the plugin writes it for a session without GPUs."""
    request = EngineRequest(
        storage=storage, files=PurePosixPath("/config"), hash_seed=1, buffer_bytes=None
    )
    setup = LMCacheMultiProcess().setup(request)
    return {"kv-transfer-config": dict(setup.kv_transfer_config)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("kv-folder")


@pytest.fixture(scope="module")
def visit(image: str, folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Visitor:
    config_file = tmp_path_factory.mktemp("config") / "engine.yaml"

    def run(model: Path, namespace: str) -> Visit:
        config = engine_config(FOLDER_PATH / "ns" / namespace)
        storage = folder / "ns" / namespace
        with running_engine(
            image, model=model, folder=folder, config=config, config_file=config_file
        ) as engine:
            answer = engine.complete(_PROMPT)
            files = _stored_files(storage, answer.prompt_tokens // _CHUNK_TOKENS)
            loaded = engine.metric(
                "vllm:prompt_tokens_by_source_total", source="external_kv_transfer"
            )
        return Visit(answer, loaded, files)

    return run


def _stored_files(storage: Path, count: int) -> frozenset[str]:
    """The data files of a namespace. Storing goes on behind an answer, so they are waited for."""
    deadline = time.monotonic() + _STORE_SECONDS
    while True:
        files = frozenset(path.name for path in storage.glob("*.data"))
        if len(files) >= count or time.monotonic() > deadline:
            return files
        time.sleep(0.2)


@pytest.fixture(scope="module")
def first(visit: Visitor, model: Path) -> Visit:
    """The first engine that uses the folder."""
    return visit(model, "one")


@pytest.fixture(scope="module")
def restarted(visit: Visitor, model: Path, first: Visit) -> Visit:
    """The same model in a new container, as after a restart or on another node."""
    return visit(model, "one")


@pytest.fixture(scope="module")
def stranger(visit: Visitor, other_model: Path, first: Visit) -> Visit:
    """Another model in the first one's namespace."""
    return visit(other_model, "one")


@pytest.fixture(scope="module")
def neighbour(visit: Visitor, other_model: Path, first: Visit) -> Visit:
    """Another model in the same folder, in a namespace of its own."""
    return visit(other_model, "two")


class TestRoundTrip:
    def test_first_engine_computes_the_prompt_itself(self, first: Visit) -> None:
        assert first.loaded_tokens == 0

    def test_every_whole_chunk_of_the_prompt_becomes_a_file(self, first: Visit) -> None:
        assert len(first.files) == first.answer.prompt_tokens // _CHUNK_TOKENS

    def test_restarted_engine_loads_nearly_all_of_it(self, restarted: Visit) -> None:
        assert restarted.loaded_share >= 0.9

    def test_loaded_context_gives_the_same_answer(self, first: Visit, restarted: Visit) -> None:
        assert first.answer.text.strip()
        assert restarted.answer.text == first.answer.text

    def test_what_is_there_is_not_stored_again(self, first: Visit, restarted: Visit) -> None:
        assert restarted.files == first.files


class TestTwoModelsAtOnePath:
    """Why namespaces exist: LMCache knows a model by its path, and these two have the same."""

    def test_without_namespaces_one_model_takes_the_other_ones_context(
        self, first: Visit, stranger: Visit
    ) -> None:
        assert stranger.files == first.files
        assert stranger.loaded_share >= 0.9

    def test_and_then_answers_wrongly(self, stranger: Visit, neighbour: Visit) -> None:
        assert stranger.answer.text != neighbour.answer.text

    def test_in_a_namespace_of_its_own_it_takes_nothing(
        self, first: Visit, neighbour: Visit
    ) -> None:
        assert neighbour.loaded_tokens == 0
        assert neighbour.answer.text != first.answer.text
