"""What a session's engine is told about GPU memory, as the budget takes it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from decimal import Decimal

import attrs
from packaging.version import Version

from ..engine.arguments import EngineArguments
from ..engine.versions import NEWEST, OLDEST_VLLM, Versions
from ..errors import DeclinedError
from ..model.parallel import GpuShare
from ..model.widths import Widths
from ..sizes import GIB
from .overhead import EngineLoad, Overhead, estimate_overhead

#: Set to 0, it has vLLM leave no room for CUDA graphs (vllm/envs.py).
_GRAPHS_VARIABLE = "VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS"

#: With it, vLLM keeps the size of its pool from one start to the next (v1/worker/startup_plan.py,
#: from 0.26 on).
_PLAN_VARIABLE = "VLLM_ENABLE_STARTUP_PLAN"

#: Ways to guess tokens that need no weights besides those of the checkpoint (vLLM,
#: config/speculative.py). Names of families that end in "_mtp" are the same as "mtp".
_WITHOUT_DRAFT_WEIGHTS = ("ngram", "ngram_gpu", "suffix", "mtp")

#: Options with which weights may become smaller while they are loaded: 16 bits to 4 at the most.
_MAKE_SMALLER = frozenset({"--quantization", "-q", "--load-format"})
_QUANTIZED_PART = 4

#: Options with which experts are divided over the engines of a session too.
_DIVIDE_FURTHER = frozenset({"--enable-expert-parallel"})


def engine_load(
    arguments: EngineArguments, environ: Mapping[str, str], gpu_model: str | None
) -> EngineLoad:
    """What decides over an engine's memory besides its model.

    Args:
        gpu_model: what the GPUs' vendor calls them. None: not known.
    """
    return EngineLoad(
        sequences=arguments.max_num_seqs,
        batched_tokens=arguments.max_num_batched_tokens,
        graphs=not arguments.enforce_eager,
        graphs_changed=bool(arguments.graph_changes),
        graphs_estimated=environ.get(_GRAPHS_VARIABLE, "1") != "0",
        speculates=arguments.speculates,
        small_batches="a100" in (gpu_model or "").lower(),
    )


def overhead_of(
    widths: Widths,
    share: GpuShare,
    memory_bytes: int,
    versions: Versions,
    load: EngineLoad | None = None,
) -> Overhead:
    """The overhead on one GPU. Where vLLM's version is not known, the bounds hold for all."""

    def by(version: Version) -> Overhead:
        return estimate_overhead(
            widths,
            layers=max(share.stage_layers),
            tensor=share.parallel.tensor,
            ranks=share.parallel.gpus,
            memory_bytes=memory_bytes,
            version=version,
            load=load,
        )

    if versions.of("vllm") is not None:
        return by(versions.release_of("vllm"))
    newest, oldest = by(Version(NEWEST["vllm"])), by(Version(OLDEST_VLLM))
    return Overhead(
        likely=newest.likely,
        low=min(newest.low, oldest.low),
        high=max(newest.high, oldest.high),
        graphs_beside=max(newest.graphs_beside, oldest.graphs_beside),
        graphs_beside_likely=max(newest.graphs_beside_likely, oldest.graphs_beside_likely),
    )


@attrs.frozen
class GpuWeights:
    """The weights on one GPU, in bytes."""

    size: int
    """At the most."""
    spared: int
    """How much less it may be."""


def weights_on_gpu(
    arguments: EngineArguments, share: GpuShare, engines: int, total_bytes: int
) -> GpuWeights:
    """How much of the weights lies on one GPU.

    ``--cpu-offload-gb`` leaves that many GiB of each GPU's part in host memory (vLLM,
    model_executor/models/utils.py, maybe_offload_to_cpu). Where other options choose what stays
    there, or make the weights smaller, they count in full, and nothing is concluded from that.
    """
    size = share.weights_bytes(total_bytes)
    changes = set(arguments.weights_changes)
    if changes - _MAKE_SMALLER - _DIVIDE_FURTHER:
        return GpuWeights(size, spared=size)
    kept = size - min(size, int(arguments.cpu_offload_gb * GIB))
    parts = _QUANTIZED_PART if changes & _MAKE_SMALLER else 1
    if changes & _DIVIDE_FURTHER:
        parts *= engines
    return GpuWeights(kept, spared=kept - kept // parts)


def refuse_unclear_memory(arguments: EngineArguments, environ: Mapping[str, str]) -> None:
    """Some options leave open how much room there is for a transfer buffer.

    A buffer that is taken from vLLM's share could then keep the engine from starting. A share that
    the user fixed is left as it is, so vLLM sizes its pool as it does without KV cache.

    Raises:
        DeclinedError: such an option was given; the message says what to do.
    """
    if environ.get(_PLAN_VARIABLE, "0") not in ("", "0"):
        raise DeclinedError(
            f"{_PLAN_VARIABLE} has vLLM take the size of its KV pool from an earlier start, which "
            "may have had no transfer buffer beside it; remove it, or give --kv-cache-memory-bytes"
        )
    if arguments.num_gpu_blocks_override is not None:
        raise DeclinedError(
            f"--num-gpu-blocks-override {arguments.num_gpu_blocks_override} gives vLLM's KV pool "
            "that many blocks whatever memory is left, so no room for a transfer buffer can be "
            "made; remove it, or give --kv-cache-memory-bytes in its place"
        )
    if arguments.gpu_memory_utilization is not None or arguments.kv_cache_memory_bytes is not None:
        return
    remedy = "give --gpu-memory-utilization a share that leaves room for a transfer buffer"
    if "--enable-expert-parallel" in arguments.weights_changes and not arguments.enforce_eager:
        raise DeclinedError(
            "--enable-expert-parallel: vLLM may reserve tens of GiB for CUDA graphs then "
            f"(vLLM#45178, vLLM#53013), so its share of the GPU is not lowered; {remedy}"
        )
    if arguments.memory_additions:
        raise DeclinedError(
            f"{' and '.join(arguments.memory_additions)}: how much of a GPU the engine takes then "
            f"is not known before it starts, so its share of the GPU is not lowered; {remedy}"
        )
    if arguments.speculates and not _needs_no_draft_weights(arguments.draft):
        raise DeclinedError(
            "a draft model runs beside, whose memory is not known before the engine starts, so its "
            f"share of the GPU is not lowered; {remedy}"
        )


def _needs_no_draft_weights(draft: Mapping[str, str]) -> bool:
    method = None
    for option, value in draft.items():
        whole, _, path = option.partition(".")
        if whole not in ("--speculative-config", "-sc", "--spec-method"):
            continue
        if path == "method" or whole == "--spec-method":
            method = value
        elif not path:
            try:
                described = json.loads(value)
            except (ValueError, RecursionError):
                return False
            method = described.get("method") if isinstance(described, dict) else None
    return isinstance(method, str) and (method in _WITHOUT_DRAFT_WEIGHTS or method.endswith("_mtp"))


def share_of(arguments: EngineArguments, default: Decimal) -> Decimal:
    """vLLM's share of a GPU without KV cache."""
    told = arguments.gpu_memory_utilization
    return default if told is None else Decimal(told)


def host_bytes_besides(arguments: EngineArguments, ranks: int) -> int:
    """Host memory that the engine was told to take besides: weights that stay there.

    ``--swap-space`` is none of it: vLLM's V1 engine checks the size and allocates nothing
    (config/cache.py of 0.15 to 0.17; the option is gone in 0.18).
    """
    return int(arguments.cpu_offload_gb * GIB) * ranks
