from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from pathlib import Path

import pytest

from ai.backend.kvcache.errors import SizeError
from ai.backend.kvcache.model.source import ModelSource, open_model
from ai.backend.kvcache.plan.ask import description, sizing_request
from ai.backend.kvcache.sizes import GIB

MODEL = open_model("qwen3-8b")


def test_nothing_is_said() -> None:
    request = sizing_request(MODEL)
    assert (request.gpus, request.memory_bytes, request.parallel.gpus) == (None, None, 1)


def test_gpus_are_shared_among_stages() -> None:
    request = sizing_request(MODEL, gpus=Decimal(8), pipeline_parallel=2)
    assert (request.parallel.tensor, request.parallel.pipeline) == (4, 2)


def test_half_a_gpu_has_half_its_memory() -> None:
    request = sizing_request(MODEL, gpus=Decimal("0.5"), gpu_memory=48 * GIB)
    assert (request.gpus, request.memory_bytes) == (1, 24 * GIB)


def test_the_smallest_share_is_not_taken_for_none() -> None:
    assert sizing_request(MODEL, gpus=Decimal("1e-30")).memory_bytes == 1


def test_too_few_gpus() -> None:
    with pytest.raises(SizeError, match=r"gpus = 4 does not go with .* size of 8 .* 8 GPUs$"):
        sizing_request(MODEL, gpus=Decimal(4), tensor_parallel=8)


class TestModelOfAStartCommand:
    """Its files are read where there are any."""

    @pytest.fixture
    def folder(self, make_folders: Callable[[str], tuple[Path, Path]]) -> Path:
        return make_folders("llama-3.1-8b")[0]

    def asked(self, model: Path | str) -> ModelSource | Path:
        return description(str(model), ("vllm", "serve", "/models")).model

    def test_directory(self, folder: Path) -> None:
        assert self.asked(folder) == folder

    def test_configuration_beside_the_weights(self, folder: Path) -> None:
        assert self.asked(folder / "config.json") == folder

    def test_configuration_alone(self, folder: Path, data: Path) -> None:
        (folder / "model.safetensors").unlink()
        for path in (folder, folder / "config.json", data / "models/llama-3.1-8b.config.json"):
            source = self.asked(path)
            assert isinstance(source, ModelSource)
            assert source.config["model_type"] == "llama"

    def test_folder_of_several(self, folder: Path) -> None:
        assert self.asked(folder.parent) == folder.parent

    def test_name(self) -> None:
        assert isinstance(self.asked("llama-3.1-8b"), ModelSource)
