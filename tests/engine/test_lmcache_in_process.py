"""LMCache inside vLLM's own processes with ordinary files, and what it counts on vLLM's page.

Only the copies between vLLM's blocks and LMCache's memory are not the engine's own: cpu_blocks.py.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import attrs
import pytest

from ai.backend.kvcache.engine.select import Wish
from ai.backend.kvcache.metrics.interval import between
from ai.backend.kvcache.metrics.reading import Reading, read_page
from ai.backend.kvcache.plan.decide import Preparation
from ai.backend.kvcache.plan.session import Gpus, Image, Mount, Session
from ai.backend.kvcache.policy.settings import Settings
from ai.backend.kvcache.sizes import GIB
from devcluster.completion import Answer, answers
from devcluster.tinytext import long_prompt

from . import cpu_blocks
from .engine_container import EngineContainer, wait_until_ready
from .session_container import prepared, running_session, session_of

PROMPT = long_prompt(3000, seed=1)
PROMPT_TOKENS = 3026
#: 11 whole chunks of 256 tokens.
CHUNKS, CHUNK_TOKENS = 11, 256
#: 4 layers, keys and values, 256 tokens, 4 heads of 64, 4 bytes each.
CHUNK_BYTES = 2_097_152
#: In front of it in a file.
HEADER_BYTES = 28

#: What the plugin takes the image's versions for. With those that are in it, LMCache inside vLLM is
#: refused: it moves blocks wrongly. Here cpu_blocks.py moves them, and all else is the engine's
#: own.
_TAKEN_FOR = Image(
    "engine-of-this-test",
    {
        "ai.backend.kvcache.engine-version": "0.20.2",
        "ai.backend.kvcache.lmcache-version": "0.5.6",
    },
)

#: LMCache counts on the page every 10 s.
_PATIENCE_SECONDS = 60.0

#: In a terminal an engine is started again and again, in one container.
_TWICE = ("sh", "-c", '"$@"; exec "$@"', "twice")
_END_ENGINE = """
import os, pathlib, signal
for pid in filter(str.isdigit, os.listdir("/proc")):
    words = pathlib.Path("/proc", pid, "cmdline").read_bytes().split(b"\\0")
    if b"serve" in words and b"twice" not in words:
        os.kill(int(pid), signal.SIGTERM)
"""


@dataclass(frozen=True)
class Life:
    """One engine's: what it answered, and what the page said and the folder held then."""

    answer: Answer
    reading: Reading
    sizes: tuple[int, ...]


def wait_for(what: str, condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"not within {_PATIENCE_SECONDS:.0f} s: {what}"
        time.sleep(0.5)


def make_plugin(directory: Path) -> None:
    """Writes cpu_blocks.py as a package that vLLM finds."""
    assert cpu_blocks.__file__ is not None
    shutil.copy(cpu_blocks.__file__, directory)
    described = directory / "cpu_blocks-1.dist-info"
    described.mkdir()
    (described / "METADATA").write_text("Metadata-Version: 2.1\nName: cpu-blocks\nVersion: 1\n")
    (described / "entry_points.txt").write_text(
        "[vllm.general_plugins]\ncpu_blocks = cpu_blocks:install\n"
    )


def prepare_session(model: Path, folder: Path, plugin: Path) -> tuple[Session, Preparation]:
    """A session that the plugin takes for one with a GPU, whose engine is started twice."""
    arguments = ("--dtype", "float32")
    session = session_of(model, folder, at="/models", arguments=arguments, image=_TAKEN_FOR)
    session = attrs.evolve(
        session,
        mounts=(*session.mounts, Mount("p", plugin, PurePosixPath("/plugin"), False, False)),
        environ={"PYTHONPATH": "/plugin"},
        gpus=Gpus("cuda", 1, 80 * GIB),
        shared_memory_bytes=GIB,
    )
    preparation = prepared(session, Settings(wish=Wish(adapter="lmcache-posix")))
    command = (*_TWICE, *(preparation.start_command or ()))
    return session, attrs.evolve(preparation, start_command=command)


def live(engine: EngineContainer, storage: Path, quantity: str) -> Life:
    """Asks once and waits until so many chunks are counted as the quantity's."""
    answer = engine.complete(PROMPT)
    wait_for(
        f"{CHUNKS} chunks in {quantity}",
        lambda: read_page(engine.page())[quantity] == CHUNKS,
    )
    sizes = tuple(path.stat().st_size for path in storage.iterdir() if path.is_file())
    return Life(answer, read_page(engine.page()), sizes)


@dataclass(frozen=True)
class Lives:
    first: Life
    second: Life
    directory: str
    """Mode and file system of the counters' directory."""


@pytest.fixture(scope="module")
def lives(image: str, model: Path, tmp_path_factory: pytest.TempPathFactory) -> Lives:
    """The same prompt, asked of two engines one after the other in one container."""
    folder, plugin, config = map(tmp_path_factory.mktemp, ("kv-folder", "plugin", "config"))
    make_plugin(plugin)
    session, preparation = prepare_session(model, folder, plugin)
    assert preparation.plan.namespace is not None
    storage = folder / "ns" / preparation.plan.namespace.name
    with running_session(image, session, preparation, config) as engine:
        first = live(engine, storage, "stores")
        engine.run("python3", "-c", _END_ENGINE)
        wait_for("the first engine ends", lambda: not answers(engine.url))
        wait_until_ready(engine)
        second = live(engine, storage, "loads")
        counters = preparation.environment["PROMETHEUS_MULTIPROC_DIR"]
        directory = engine.run("sh", "-c", f"stat -c %a {counters}; stat -f -c %T {counters}")
    return Lives(first, second, directory)


def test_directory_of_the_counters(lives: Lives) -> None:
    assert lives.directory.split() == ["1777", "tmpfs"]


class TestFirst:
    def test_files(self, lives: Lives) -> None:
        assert lives.first.sizes == (HEADER_BYTES + CHUNK_BYTES,) * CHUNKS

    def test_what_lmcache_counts(self, lives: Lives) -> None:
        values = lives.first.reading.values
        stored = sum(lives.first.sizes) - CHUNKS * HEADER_BYTES
        assert (values["stored_bytes"], values["stores"]) == (stored, CHUNKS)
        assert (values["loaded_bytes"], values["loads"]) == (0, 0)
        # Gauges that LMCache would have to be asked for are on no page, and so not zero.
        assert "is_healthy" not in values
        assert "failed_loads" not in values
        assert "failed_stores" not in values

    def test_what_vllm_counts(self, lives: Lives) -> None:
        values = lives.first.reading.values
        assert values["prompt_tokens"] == values["computed_tokens"] == PROMPT_TOKENS
        assert values["external_tokens"] == values["engine_tokens"] == 0
        assert values["requests"] == lives.first.reading.buckets[float("inf")] == 1
        # No more than the whole answer took.
        assert 0 < values["prefill_seconds"] < values["first_token_seconds"]
        assert 0 <= values["queue_seconds"] < values["first_token_seconds"]
        assert values["preemptions"] == 0
        assert 0 <= values["pool_use"] < 1


class TestSecond:
    def test_loads_what_the_first_stored(self, lives: Lives) -> None:
        assert lives.second.answer.text == lives.first.answer.text
        assert lives.second.sizes == lives.first.sizes

    def test_what_lmcache_counts(self, lives: Lives) -> None:
        values = lives.second.reading.values
        in_folder = sum(lives.second.sizes) - CHUNKS * HEADER_BYTES
        assert (values["loaded_bytes"], values["loads"]) == (in_folder, CHUNKS)
        # The first engine's, which is no more.
        assert (values["stored_bytes"], values["stores"]) == (in_folder, CHUNKS)

    def test_sums_go_on_where_the_first_ended(self, lives: Lives) -> None:
        interval = between(lives.first.reading, lives.second.reading, 60.0)
        counted = interval.counted
        assert counted["prompt_tokens"] == PROMPT_TOKENS
        assert counted["external_tokens"] == CHUNKS * CHUNK_TOKENS
        assert counted["computed_tokens"] == PROMPT_TOKENS - CHUNKS * CHUNK_TOKENS
        assert counted["requests"] == interval.buckets[float("inf")] == 1
        assert counted["loaded_bytes"] == CHUNKS * CHUNK_BYTES
        assert counted["stored_bytes"] == 0
        # A gauge is not summed over engines that are no more.
        assert 0 <= lives.second.reading.values["pool_use"] < 1
