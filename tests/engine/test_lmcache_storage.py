"""LMCache inside vLLM's own processes, as far as it goes without a GPU: its storage.

What moves blocks between it and vLLM needs a GPU. Where blocks are made, how they lie in the folder
and what becomes of damaged files does not.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

import attrs
import pytest

from ai.backend.kvcache.engine.adapter import EngineRequest
from ai.backend.kvcache.engine.lmcache import CONFIG_FILE, CONFIG_VARIABLE
from ai.backend.kvcache.engine.select import adapter_named
from ai.backend.kvcache.engine.versions import Versions
from ai.backend.kvcache.sizes import GIB, MIB

from .oracle import Oracle

STORAGE = PurePosixPath("/kvcache/ns/808bcad421012905df918cc88de71999")

REQUEST = EngineRequest(
    storage=STORAGE,
    files=PurePosixPath("/home/config/kvcache"),
    session="5f0c2f3e-0000-4000-8000-000000000000",
    hash_seed=2_156_646_100,
    versions=Versions({"vllm": "0.32.0", "lmcache": "0.5.6"}),
    buffer_bytes=GIB,
    host_bytes=256 * MIB,
)


def question(adapter: str, request: EngineRequest = REQUEST) -> dict[str, Any]:
    setup = adapter_named(adapter).setup(request)
    environment = {k: v for k, v in setup.environment.items() if k != CONFIG_VARIABLE}
    return {"environment": environment, "file": setup.files[CONFIG_FILE]}


class TestGds:
    """Its backend needs a GPU, and is left out."""

    def ask(self, ask: Oracle, request: EngineRequest) -> Mapping[str, Any]:
        asked = {**question("lmcache-gds", request), "without": ["gds_path"]}
        return ask("lmcache_storage", "lmcache==0.5.6", asked)

    def test_stores_are_staged_in_host_memory(self, ask: Oracle) -> None:
        assert self.ask(ask, REQUEST) == {"allocator": "LocalCPUBackend"}

    def test_without_any_it_does_not_start(self, ask: Oracle) -> None:
        answer = self.ask(ask, attrs.evolve(REQUEST, host_bytes=0))
        assert "LocalCPUBackend" in answer["error"]


@pytest.fixture(scope="class")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A namespace's directory that four blocks were stored in."""
    return tmp_path_factory.mktemp("namespace")


class TestPosix:
    @pytest.fixture(scope="class")
    def stored(self, ask: Oracle, folder: Path) -> dict[str, bytes]:
        asked = {**question("lmcache-posix"), "store": 4}
        answer = ask("lmcache_storage", "lmcache==0.5.6", asked, {folder: str(STORAGE)})
        assert answer == {"allocator": "LocalCPUBackend"}
        files = sorted(path for path in folder.iterdir() if path.is_file())
        return {path.name: path.read_bytes() for path in files}

    def load(self, ask: Oracle, folder: Path) -> list[str]:
        asked = {**question("lmcache-posix"), "load": 4}
        answer = ask("lmcache_storage", "lmcache==0.5.6", asked, {folder: str(STORAGE)})
        loaded: list[str] = answer["load"]
        return loaded

    def test_files(self, stored: dict[str, bytes]) -> None:
        assert list(stored) == [
            f"-SEP-home-SEP-config-SEP-kvcache-SEP-model@1@0@{number}@half.data"
            for number in range(4)
        ]
        # 28 bytes of header; 2 layers, keys and values, 256 tokens, 2 heads of 16, 2 bytes each.
        assert {len(content) for content in stored.values()} == {28 + 65_536}

    def test_a_directory_of_the_sessions_own(self, folder: Path, stored: dict[str, bytes]) -> None:
        # Where a block is written before it gets its place among the others.
        (own,) = (path for path in folder.iterdir() if path.is_dir())
        assert own.name == f".tmp-{REQUEST.session}"
        assert list(own.iterdir()) == []

    def test_another_worker_loads_them(
        self, ask: Oracle, folder: Path, stored: dict[str, bytes]
    ) -> None:
        assert self.load(ask, folder) == ["same"] * 4

    def test_damage(self, ask: Oracle, folder: Path, stored: dict[str, bytes]) -> None:
        first, second, third, fourth = (folder / name for name in stored)
        first.write_bytes(stored[first.name][:-1])
        second.write_bytes(b"")
        third.unlink()
        content = bytearray(stored[fourth.name])
        content[1000] ^= 0x40
        fourth.write_bytes(content)
        (folder / "foreign").write_text("not a block")
        # Nothing notices the changed byte: docs/compatibility.md says so.
        assert self.load(ask, folder) == ["none", "none", "none", "other"]
