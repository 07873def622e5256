"""What a person asks for, on a command line or in a request, as the sizing takes it."""

from __future__ import annotations

from decimal import Decimal

from ..engine.lmcache import CHUNK_TOKENS
from ..engine.versions import NEWEST
from ..errors import SizeError
from ..model.parallel import Parallel
from ..model.source import ModelSource
from ..policy.settings import DEFAULT_CONCURRENT_TRANSFERS
from .sizing import ASSUMED_MEMORY_BYTES, SizingRequest


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
    if gpus is not None and gpus < 1:
        gpu_memory = max(1, int(gpus * (gpu_memory or ASSUMED_MEMORY_BYTES)))
    return SizingRequest(
        model=model,
        parallel=_parallel(tensor_parallel, pipeline_parallel, decode_context_parallel, count),
        gpus=count,
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
