"""The oldest LMCache whose server is used, with the vLLM that it was made for.

Its image takes 6 GB and some minutes to make, so this runs by name only.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from ai.backend.kvcache.plan.session import Image
from devcluster.completion import Answer
from devcluster.image import Recipe, engine_image
from devcluster.paths import CLONE
from devcluster.tinytext import long_prompt

from .session_container import prepared, running_session, session_of

pytestmark = pytest.mark.older

VERSIONS = Image(
    "older-engine",
    {
        "ai.backend.kvcache.engine-version": "0.20.2",
        "ai.backend.kvcache.lmcache-version": "0.4.6",
    },
)
PROMPT = long_prompt(3000, seed=1)
STORE_SECONDS = 60.0


@dataclass(frozen=True)
class Visit:
    """One engine's life."""

    answer: Answer
    loaded: float
    """Tokens of the prompt that came out of the folder."""
    files: frozenset[str]
    log: str


@pytest.fixture(scope="module")
def older_image() -> str:
    return engine_image(Path(sys.executable), Recipe(CLONE / "images" / "vllm-cpu-0.20"))


def visit(image: str, model: Path, folder: Path, config_dir: Path) -> Visit:
    session = session_of(
        model, folder, at="/models", arguments=("--dtype", "float32"), image=VERSIONS
    )
    preparation = prepared(session)
    assert preparation.plan.namespace is not None
    storage = folder / "ns" / preparation.plan.namespace.name
    with running_session(image, session, preparation, config_dir) as engine:
        answer = engine.complete(PROMPT)
        deadline = time.monotonic() + STORE_SECONDS
        while len(list(storage.glob("*.data"))) < 11 and time.monotonic() < deadline:
            time.sleep(0.2)
        loaded = engine.metric("vllm:prompt_tokens_by_source_total", source="external_kv_transfer")
        files = frozenset(path.name for path in storage.glob("*.data"))
    return Visit(answer, loaded, files, engine.log)


@pytest.fixture(scope="module")
def visits(
    older_image: str, model: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Visit, Visit]:
    """The same prompt, asked of two engines one after the other."""
    folder = tmp_path_factory.mktemp("kv-folder")
    first, second = (
        visit(older_image, model, folder, tmp_path_factory.mktemp("config")) for _ in range(2)
    )
    return first, second


def test_first_engine_computes_and_stores(visits: tuple[Visit, Visit]) -> None:
    first, _ = visits
    assert first.loaded == 0
    # 3,026 tokens are 11 whole chunks of 256.
    assert len(first.files) == 11


def test_second_engine_loads(visits: tuple[Visit, Visit]) -> None:
    first, second = visits
    assert second.loaded == 2816
    assert second.files == first.files


def test_answers_are_the_same(visits: tuple[Visit, Visit]) -> None:
    first, second = visits
    assert first.answer.text.strip()
    assert second.answer.text == first.answer.text


def test_server_is_the_plugins(visits: tuple[Visit, Visit]) -> None:
    for visited in visits:
        assert "No KV cache" not in visited.log
