from __future__ import annotations

import platform
from collections.abc import Mapping
from decimal import Decimal
from types import SimpleNamespace
from typing import Any

import pytest

from ai.backend.kvcache.agent.facts import gpus_of, gpus_of_environ

GIB = 2**30


def computers(*models: str | None) -> Mapping[str, Any]:
    """An agent with one GPU of each model; None: a plugin that does not name it."""
    devices = [
        SimpleNamespace(
            device_id=str(place),
            memory_size=80 * GIB,
            **({} if model is None else {"model_name": model}),
        )
        for place, model in enumerate(models)
    ]
    return {"cuda": SimpleNamespace(devices=devices)}


def allotted(count: int) -> dict[str, Any]:
    return {"cuda": {"cuda.device": {str(place): Decimal(1) for place in range(count)}}}


class TestModelOfGpus:
    """What an engine chooses its kernels by."""

    def test_one(self) -> None:
        gpus = gpus_of(allotted(2), computers("NVIDIA H100", "NVIDIA H100", "NVIDIA L4"))
        assert gpus is not None
        assert (gpus.count, gpus.model) == (2, "NVIDIA H100")

    def test_several_in_any_order(self) -> None:
        found = [
            gpus_of(allotted(2), computers(*models))
            for models in (("NVIDIA L4", "NVIDIA H100"), ("NVIDIA H100", "NVIDIA L4"))
        ]
        assert {gpus and gpus.model for gpus in found} == {"NVIDIA H100, NVIDIA L4"}

    @pytest.mark.parametrize("model", [None, ""])
    def test_that_nobody_names_is_this_nodes_alone(self, model: str | None) -> None:
        gpus = gpus_of(allotted(1), computers(model))
        assert gpus is not None
        assert gpus.model == f"unknown, of {platform.node()}"

    def test_in_the_environment(self) -> None:
        environ = {"GPU_TYPE": "cuda", "GPU_CONFIG": "0:80g", "GPU_MODEL_NAME": "NVIDIA H100"}
        gpus = gpus_of_environ(environ)
        assert gpus is not None
        assert (gpus.memory_bytes, gpus.model) == (80 * GIB, "NVIDIA H100")

    def test_in_no_environment(self) -> None:
        gpus = gpus_of_environ({"GPU_CONFIG": "0:80g"})
        assert gpus is not None
        assert gpus.model == f"unknown, of {platform.node()}"
