"""Which model a session runs: its configuration as the engine's arguments and version change it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path, PurePosixPath

import pytest
from packaging.version import Version

from ai.backend.kvcache.errors import DeclinedError, ModelError
from ai.backend.kvcache.folder.entries import Owner
from ai.backend.kvcache.plan.model import Model, read_model
from ai.backend.kvcache.plan.session import Image, Mount, Service, Session
from ai.backend.kvcache.plan.start import read_start

type Reader = Callable[..., Model]


@pytest.fixture
def read(tmp_path: Path, data: Path) -> Reader:
    """Reads a captured model, started with these arguments."""

    def read_it(model: str, *arguments: str, vllm: str | None = None, **environ: str) -> Model:
        config = (data / "models" / f"{model}.config.json").read_bytes()
        (tmp_path / "config.json").write_bytes(config)
        (tmp_path / "model.safetensors").write_bytes(b"weights")
        session = Session(
            kernel_id="5f0c2f3e-0000-4000-8000-000000000000",
            mounts=(Mount("my-model", tmp_path, PurePosixPath("/models"), False, True),),
            environ=environ,
            image=Image("local/stable/vllm:1", {}),
            gpus=None,
            service=Service(("vllm", "serve", "/models", *arguments), PurePosixPath("/models")),
            owner=Owner(),
            shared_memory_bytes=None,
        )
        release = None if vllm is None else Version(vllm)
        return read_model(session, read_start(session), release)

    return read_it


@pytest.mark.parametrize(
    ("vllm", "expected"), [("0.20.2", 131_072), ("0.32.0", 40_960), (None, 131_072)]
)
def test_yarn_by_version(read: Reader, vllm: str | None, expected: int) -> None:
    geometry = read("qwen3-yarn-128k", vllm=vllm).geometry
    assert geometry.max_model_len == expected
    assert bool(geometry.warnings) is (vllm is None)


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ('{"max_position_embeddings": 16384}', 16_384),
        ('{"rope_parameters": {"rope_type": "linear", "factor": 2.0}}', 65_536),
        ("{}", 32_768),
    ],
)
def test_overrides(read: Reader, overrides: str, expected: int) -> None:
    geometry = read("mistral-7b-v0.2", "--hf-overrides", overrides).geometry
    assert geometry.max_model_len == expected


@pytest.mark.parametrize("value", ["1", "true"])
def test_latent_attention_switched_off(read: Reader, value: str) -> None:
    with pytest.raises(DeclinedError, match="VLLM_MLA_DISABLE makes vLLM keep"):
        read("deepseek-v3", VLLM_MLA_DISABLE=value)
    assert read("llama-3.1-8b", VLLM_MLA_DISABLE=value).geometry.bytes_per_token == 131_072


def test_latent_attention_left_on(read: Reader) -> None:
    assert read("deepseek-v3", VLLM_MLA_DISABLE="0").geometry.is_latent


def test_family_that_is_not_certain(read: Reader) -> None:
    with pytest.raises(ModelError, match="what its layers keep is not certain"):
        read("llama-3.1-8b", "--hf-overrides", '{"model_type": "mine", "layer_group_size": 4}')
