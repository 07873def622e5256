from __future__ import annotations

from pathlib import Path

import pytest

from ai.backend.kvcache.model.catalog import catalog
from ai.backend.kvcache.model.config import read_json
from ai.backend.kvcache.model.geometry import read_geometry
from ai.backend.kvcache.model.weights import estimate_weights


def test_enough_models() -> None:
    assert len(catalog()) >= 30


@pytest.mark.parametrize("name", catalog())
def test_every_model_is_understood(name: str) -> None:
    model = catalog()[name]
    base = f"https://huggingface.co/{model.repository}/blob/main/"
    assert model.source in (f"{base}config.json", f"{base}params.json")
    assert model.repository.count("/") == 1
    geometry = read_geometry(model.config)
    # What vLLM assumes for Falcon, and images; nothing that was guessed.
    assert all("is not known" not in warning for warning in geometry.warnings)
    assert geometry.bytes_per_token_no_hybrid > 0
    assert estimate_weights(model.config).total_bytes > 10**9


@pytest.mark.parametrize(
    "name",
    [
        "deepseek-v3",
        "devstral-2-123b",
        "gemma-3-27b",
        "gpt-oss-120b",
        "llama-3.1-70b",
        "llama-3.1-8b",
        "mixtral-8x7b",
        "qwen3-32b",
    ],
)
def test_agrees_with_what_was_captured(data: Path, name: str) -> None:
    captured = read_json(data, data / "models" / f"{name}.config.json")
    assert read_geometry(captured) == read_geometry(catalog()[name].config)
    assert (
        estimate_weights(captured).total_bytes
        == estimate_weights(catalog()[name].config).total_bytes
    )
