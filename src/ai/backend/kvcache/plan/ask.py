"""What a person asks for, on a command line or in a request, as the plans take it."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path, PurePosixPath
from typing import Any

import attrs

from ..engine.lmcache import CHUNK_TOKENS
from ..engine.versions import NEWEST
from ..errors import SizeError, StartCommandError
from ..model.parallel import Parallel
from ..model.source import ModelSource, is_model, open_model
from ..model.weights import Weights
from ..policy.policy import check_policy
from ..policy.settings import DEFAULT_CONCURRENT_TRANSFERS
from .described import DEFAULT_MODEL_PATH, Description
from .sizing_request import ASSUMED_MEMORY_BYTES, SizingRequest


def _parallel(tensor: int | None, pipeline: int, decode_context: int, gpus: int | None) -> Parallel:
    """The sizes of parallelism; without a size of tensor parallelism, one rank for each GPU."""
    if tensor is None:
        tensor = max(1, (gpus or 1) // pipeline)
    parallel = Parallel(tensor, pipeline, decode_context)
    if gpus is not None and gpus < parallel.gpus:
        raise SizeError(
            f"gpus = {gpus} does not go with a tensor-parallel size of {tensor} and a "
            f"pipeline-parallel size of {pipeline}, which take {parallel.gpus} GPUs"
        )
    return parallel


def sizing_request(
    model: ModelSource,
    *,
    gpus: Decimal | None = None,
    gpu_memory: int | None = None,
    tensor_parallel: int | None = None,
    pipeline_parallel: int = 1,
    decode_context_parallel: int = 1,
    gpu_memory_utilization: Decimal | None = None,
    pin_utilization: bool = False,
    max_model_len: int | None = None,
    kv_cache_dtype: str = "auto",
    weights: int | None = None,
    overhead: int | None = None,
    concurrent_transfers: int = DEFAULT_CONCURRENT_TRANSFERS,
    context: int | None = None,
    chunk_size: int = CHUNK_TOKENS,
    lmcache_version: str = NEWEST["lmcache"],
    vllm_version: str = NEWEST["vllm"],
) -> SizingRequest:
    """All options but the model may be left out. Memory is in bytes, contexts are in tokens.

    Args:
        gpus: how many; below 1, a share of one.
        gpu_memory: of one whole GPU.

    Raises:
        SizeError: the GPUs are too few for the sizes of parallelism.
    """
    count = None if gpus is None else max(1, int(gpus))
    is_fraction = gpus is not None and gpus < 1
    if gpus is not None and is_fraction:
        gpu_memory = max(1, int(gpus * (gpu_memory or ASSUMED_MEMORY_BYTES)))
    return SizingRequest(
        model=model,
        parallel=_parallel(tensor_parallel, pipeline_parallel, decode_context_parallel, count),
        gpus=count,
        is_fraction=is_fraction,
        memory_bytes=gpu_memory,
        utilization=gpu_memory_utilization,
        pinned=pin_utilization,
        max_model_len=max_model_len,
        kv_cache_dtype=kv_cache_dtype,
        weights_bytes=weights,
        overhead_bytes=overhead,
        concurrent_transfers=concurrent_transfers,
        context_tokens=context,
        chunk_tokens=chunk_size,
        lmcache_version=lmcache_version,
        vllm_version=vllm_version,
    )


def _model_on_host(argument: str) -> ModelSource | Path:
    """The directory whose files are read, or what is known of a model without any here."""
    path = Path(argument)
    if argument and path.is_dir() and not is_model(path):
        # Of several models, one of which the command names.
        return path.resolve()
    source = open_model(argument)
    return source.files.directory.resolve() if source.files else source


def description(
    model: str,
    command: tuple[str, ...],
    *,
    gpus: Decimal | None = None,
    gpu_memory: int | None = None,
    gpu_model: str | None = None,
    image: str | None = None,
    weights: int | None = None,
    env: Sequence[tuple[str, str]] = (),
    mem: int | None = None,
    shmem: int | None = None,
    model_path: str | None = None,
    setting: Sequence[tuple[str, str]] = (),
    concurrent_transfers: int | None = None,
    vllm_version: str | None = None,
    lmcache_version: str | None = None,
    sglang_version: str | None = None,
    kvbm_version: str | None = None,
) -> Description:
    """All options but the model and the command may be left out. Memory is in bytes.

    Args:
        model: a directory, a configuration file, or a name of the catalog.
        weights: of a model whose files are not here.
        setting: of the policy, by name.

    Raises:
        ModelError: the model cannot be found or read.
        PolicyError: a setting is none, or has a value that cannot be used.
        SizeError: the weights are given of a model whose files say it.
        StartCommandError: the model's path in the session is none.
    """
    if model_path is not None and not PurePosixPath(model_path).is_absolute():
        raise StartCommandError(
            f"the model's path in the session, {model_path!r}, does not begin with /; write it as "
            f"{DEFAULT_MODEL_PATH}"
        )
    on_host = _model_on_host(model)
    if weights is not None:
        if isinstance(on_host, Path):
            raise SizeError(f"the weights of {model} are measured; leave them out")
        on_host = attrs.evolve(on_host, weights=Weights(weights, "as given"))
    settings: dict[str, Any] = dict(setting)
    if concurrent_transfers is not None:
        settings["concurrent-transfers"] = concurrent_transfers
    versions = {
        "vllm": vllm_version,
        "lmcache": lmcache_version,
        "sglang": sglang_version,
        "kvbm": kvbm_version,
    }
    return Description(
        model=on_host,
        command=command,
        environ=dict(env),
        versions={package: version for package, version in versions.items() if version is not None},
        gpus=gpus,
        gpu_memory_bytes=gpu_memory,
        gpu_model=gpu_model,
        image=image,
        memory_bytes=mem,
        shared_memory_bytes=shmem,
        model_path=None if model_path is None else PurePosixPath(model_path),
        policy=check_policy(settings),
    )
