"""What a folder does for real engines, and what it does to one that should not have had it.

Every session is prepared by the plugin as the agent does it. Each engine starts once, answers the
same prompt once, and is removed.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import pytest

from ai.backend.kvcache.engine.adapters.lmcache_mp import LMCacheMultiProcess
from ai.backend.kvcache.policy.settings import Settings, Sharing
from devcluster.completion import Answer
from devcluster.tinytext import long_prompt

from .session_container import in_namespace, prepared, running_session, session_of

_CHUNK_TOKENS = LMCacheMultiProcess.chunk_tokens
_PROMPT = long_prompt(3000, seed=1)
_STORE_SECONDS = 30.0
DEFAULTS = Settings()


@dataclass(frozen=True)
class Visit:
    """One engine's life: what it answered, what it took from the folder and what lay there then."""

    answer: Answer
    loaded_tokens: float
    files: frozenset[str]
    namespace: str

    @property
    def loaded_share(self) -> float:
        return self.loaded_tokens / self.answer.prompt_tokens


class Visitor(Protocol):
    """Starts a session's engine, asks it once and removes it."""

    def __call__(
        self,
        model: Path,
        *arguments: str,
        at: str = "/models",
        intrude: str | None = None,
        settings: Settings = DEFAULTS,
    ) -> Visit: ...


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("kv-folder")


@pytest.fixture(scope="module")
def visit(image: str, folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Visitor:
    def run(
        model: Path,
        *arguments: str,
        at: str = "/models",
        intrude: str | None = None,
        settings: Settings = DEFAULTS,
    ) -> Visit:
        # In 32 bits, where answers do not depend on how a prompt is cut into batches.
        arguments = arguments or ("--dtype", "float32")
        session = session_of(model, folder, at=at, arguments=arguments)
        preparation = prepared(session, settings)
        assert preparation.plan.namespace is not None
        namespace = preparation.plan.namespace.name
        if intrude is not None:
            preparation = in_namespace(preparation, intrude)
        config_dir = tmp_path_factory.mktemp("config")
        with running_session(image, session, preparation, config_dir) as engine:
            answer = engine.complete(_PROMPT)
            storage = folder / "ns" / (intrude or namespace)
            files = _stored_files(storage, answer.prompt_tokens // _CHUNK_TOKENS)
            loaded = engine.metric(
                "vllm:prompt_tokens_by_source_total", source="external_kv_transfer"
            )
        return Visit(answer, loaded, files, namespace)

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
    return visit(model)


@pytest.fixture(scope="module")
def moved(visit: Visitor, model: Path, first: Visit) -> Visit:
    """The same model in a new container, mounted under another and longer path."""
    return visit(model, at=f"/home/work/{'a-model-with-a-long-name-' * 9}")


@pytest.fixture(scope="module")
def intruder(visit: Visitor, other_model: Path, first: Visit) -> Visit:
    """Another model at the same path in the first one's namespace, as if there were none."""
    return visit(other_model, intrude=first.namespace)


@pytest.fixture(scope="module")
def other(visit: Visitor, other_model: Path, first: Visit) -> Visit:
    """Another model at the same path, as the plugin prepares it."""
    return visit(other_model)


@pytest.fixture(scope="module")
def other_type(visit: Visitor, model: Path, first: Visit) -> Visit:
    """The same model, computed in another type."""
    return visit(model, "--dtype", "bfloat16")


class TestRoundTrip:
    def test_first_engine_computes_the_prompt_itself(self, first: Visit) -> None:
        assert first.loaded_tokens == 0

    def test_every_whole_chunk_of_the_prompt_becomes_a_file(self, first: Visit) -> None:
        assert len(first.files) == first.answer.prompt_tokens // _CHUNK_TOKENS

    def test_file_names_are_short(self, first: Visit) -> None:
        assert max(len(name.encode()) for name in first.files) < 150


class TestSameModelElsewhere:
    def test_shares_the_namespace(self, first: Visit, moved: Visit) -> None:
        assert moved.namespace == first.namespace

    def test_loads_nearly_all_of_the_prompt(self, moved: Visit) -> None:
        assert moved.loaded_share >= 0.9

    def test_gives_the_same_answer(self, first: Visit, moved: Visit) -> None:
        assert first.answer.text.strip()
        assert moved.answer.text == first.answer.text

    def test_stores_nothing_again(self, first: Visit, moved: Visit) -> None:
        assert moved.files == first.files


class TestThreadsOfTheServersOwn:
    """The setting io-threads takes another of LMCache's two ways to the same files."""

    def test_loads_what_the_other_stored(self, visit: Visitor, model: Path, first: Visit) -> None:
        threaded = visit(model, settings=Settings(io_threads=4))
        assert threaded.namespace == first.namespace
        assert threaded.loaded_share >= 0.9
        assert threaded.answer.text == first.answer.text

    def test_stores_the_same_files(
        self, visit: Visitor, model: Path, first: Visit, tmp_path: Path
    ) -> None:
        own = Settings(io_threads=4, sharing=Sharing.USER)
        threaded = visit(model, settings=own)
        assert threaded.namespace != first.namespace
        assert threaded.loaded_tokens == 0
        assert threaded.files == first.files


class TestOtherWeightsAtTheSamePath:
    """Why namespaces exist: LMCache knows a model by its path, and these two have the same."""

    def test_without_namespaces_one_model_takes_the_other_ones_context(
        self, first: Visit, intruder: Visit
    ) -> None:
        assert intruder.files == first.files
        assert intruder.loaded_share >= 0.9

    def test_and_then_answers_wrongly(self, intruder: Visit, other: Visit) -> None:
        assert intruder.answer.text != other.answer.text

    def test_as_prepared_it_takes_nothing(self, first: Visit, other: Visit) -> None:
        assert other.namespace != first.namespace
        assert other.loaded_tokens == 0
        assert other.answer.text != first.answer.text


class TestOtherType:
    """A server on a folder with blocks of another type reports hits and answers with nothing."""

    def test_takes_nothing(self, first: Visit, other_type: Visit) -> None:
        assert other_type.namespace != first.namespace
        assert other_type.loaded_tokens == 0

    def test_answers(self, other_type: Visit) -> None:
        assert other_type.answer.text.strip()
