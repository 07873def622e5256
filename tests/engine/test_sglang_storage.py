"""SGLang's hierarchical cache, as far as it goes without a GPU: what lies behind host memory."""

from __future__ import annotations

import hashlib
import shutil
import struct
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from ai.backend.kvcache.engine.adapter import EngineRequest
from ai.backend.kvcache.engine.select import adapter_named

from .oracle import TINY_CONFIG, Oracle

STORAGE = "/kvcache/ns/808bcad421012905df918cc88de71999"

#: As a session is told.
SETUP = adapter_named("sglang-hicache").setup(
    EngineRequest(
        storage=PurePosixPath(STORAGE),
        files=PurePosixPath("/home/config/kvcache"),
        session="5f0c2f3e-0000-4000-8000-000000000000",
        hash_seed=2_156_646_100,
        host_bytes=10**9,
    )
)

QUESTION = {
    "arguments": ["--model-path", "/models", *SETUP.arguments],
    "environment": dict(SETUP.environment),
    "config": TINY_CONFIG,
}

#: 2 layers, keys and values, 64 tokens, 2 heads of 32, 2 bytes each.
PAGE_BYTES = 32_768

#: The controller has a way without copies, but not for files (managers/cache_controller.py:649).
USED = {
    "backend": "HiCacheFile",
    "page_get": "_generic_page_get",
    "page_set": "_generic_page_set",
}


def run(ask: Oracle, folder: Path, **wanted: int) -> dict[str, Any]:
    return ask("sglang_storage", "sglang==0.5.23", {**QUESTION, **wanted}, {folder: STORAGE})


def pages(folder: Path) -> list[Path]:
    """The files of four texts with two pages each. The second page's hash continues the first's."""
    files = []
    for text in range(4):
        digest = b""
        for page in (2 * text, 2 * text + 1):
            tokens = struct.pack("<64I", *range(64 * page, 64 * (page + 1)))
            digest = hashlib.sha256(digest + tokens).digest()
            # Rank 0 of 1. The model goes by the name that clients call it by, here its path.
            files.append(folder / f"{digest.hex()}_-models_0_1.bin")
    return files


@pytest.fixture(scope="module")
def stored(ask: Oracle, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A namespace's directory that four texts were stored in."""
    folder = tmp_path_factory.mktemp("namespace")
    assert run(ask, folder, store=4) == USED
    return folder


def test_files(stored: Path) -> None:
    assert set(stored.iterdir()) == set(pages(stored))
    assert {path.stat().st_size for path in pages(stored)} == {PAGE_BYTES}


def test_another_process_loads_them(ask: Oracle, stored: Path) -> None:
    assert run(ask, stored, load=4) == {**USED, "load": [["same", "same"]] * 4}


@pytest.fixture(scope="module")
def damaged(stored: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy in which each text's second page is damaged in another way."""
    folder = tmp_path_factory.mktemp("damaged") / "namespace"
    shutil.copytree(stored, folder)
    _, truncated, _, emptied, _, deleted, _, changed = pages(folder)
    truncated.write_bytes(truncated.read_bytes()[:-1])
    emptied.write_bytes(b"")
    deleted.unlink()
    content = bytearray(changed.read_bytes())
    content[1000] ^= 0x40
    changed.write_bytes(content)
    (folder / "foreign").write_text("not a page")
    return folder


def test_damage(ask: Oracle, damaged: Path) -> None:
    assert run(ask, damaged, load=4)["load"] == [
        # HiCacheFile raises, and the controller gives up the whole batch of up to 128 pages, those
        # before the bad one included (managers/cache_controller.py:1188). They are recomputed.
        ["none", "none"],
        ["none", "none"],
        ["same", "none"],
        # Nothing notices the changed byte.
        ["same", "other"],
    ]


def test_next_store_mends_only_what_is_gone(ask: Oracle, stored: Path, damaged: Path) -> None:
    run(ask, damaged, store=4)
    before = [path.read_bytes() for path in pages(stored)]
    after = [path.read_bytes() for path in pages(damaged)]
    # What is there counts as stored, however short, so those two texts never load again.
    assert [number for number in range(8) if after[number] != before[number]] == [1, 3, 7]
    assert [len(after[1]), len(after[3])] == [PAGE_BYTES - 1, 0]
    assert (damaged / "foreign").exists()
