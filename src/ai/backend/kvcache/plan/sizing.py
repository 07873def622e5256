"""What a model's sessions would get, from figures alone: no session, no folder, no GPU needed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any

import attrs
import xxhash

from ..engine.adapter import EngineAdapter, EngineRequest, EngineSetup
from ..engine.command import Program
from ..engine.lmcache import CONFIG_VARIABLE
from ..engine.select import adapter_named, select, summary
from ..engine.traits import Trait
from ..engine.versions import (
    BUFFER_OPTIONS,
    check_lmcache,
    check_vllm,
    release_of,
    variable,
)
from ..errors import DeclinedError, SizeError
from ..folder.namespace import Namespace, namespace_of
from ..model.fingerprint import fingerprint
from ..model.geometry import Geometry, read_geometry
from ..model.parallel import GpuShare
from ..model.weights import Weights, estimate_weights
from ..model.widths import read_widths
from ..policy.settings import Settings
from ..sizes import gib
from .budget import divide, keep
from .gpu import Budget, GpuRequest, default_utilization, pool_bytes
from .gpu_memory import overhead_of
from .host import HostMemory, HostRequest, divide_host
from .overhead import Overhead
from .sizing_request import ASSUMED_MEMORY_BYTES, SizingRequest
from .suitability import hybrid_note, refuse_geometry
from .traits import geometry_traits

#: Backend.AI's name of the GPUs that are planned for.
_DEVICE = "cuda"


@attrs.frozen
class Sizing:
    """A plan from figures."""

    request: SizingRequest
    geometry: Geometry
    share: GpuShare
    weights: Weights
    gpu: GpuRequest
    """As the way takes it; where there is none, as it is without KV cache."""
    budget: Budget | None
    """None: no offloading, for the first of the reasons."""
    setup: EngineSetup | None
    reasons: tuple[str, ...]
    adapter: EngineAdapter | None = None
    """The way that is taken. None: none is."""
    refused: Mapping[str, str] = attrs.field(factory=dict)
    """The ways that come first and are not taken: adapter → why not."""

    @property
    def max_model_len(self) -> int:
        return self.gpu.context_tokens

    @property
    def context_tokens(self) -> int:
        """The length of the contexts that are counted in the pool."""
        return self.request.context_tokens or self.max_model_len

    @property
    def pool_bytes_after(self) -> int:
        return self.budget.pool_bytes_after if self.budget else self.pool_bytes_before

    @property
    def pool_bytes_before(self) -> int:
        return max(0, pool_bytes(self.gpu, self.gpu.utilization))

    @property
    def resident_contexts(self) -> int:
        """How many contexts of that length stay in the pool."""
        if self.budget is None:
            return self.resident_without
        size = self.share.sequence_bytes(self.context_tokens, hybrid=self.is_hybrid)
        return max(0, self.budget.pool_bytes_after) // size

    @property
    def is_hybrid(self) -> bool:
        """Whether vLLM keeps its hybrid KV cache manager on."""
        return self.adapter is None or self.adapter.has_hybrid_manager(self.request.versions)

    @property
    def beside_bytes(self) -> int:
        """What the way takes of a GPU outside of vLLM's share, besides the buffer."""
        return 0 if self.adapter is None else _beside(self.adapter, self.gpu)

    @property
    def resident_without(self) -> int:
        """The same where the session runs without KV cache, with vLLM's hybrid manager on."""
        size = self.share.sequence_bytes(self.context_tokens, hybrid=True)
        return self.pool_bytes_before // size if size else 0

    @property
    def arguments(self) -> tuple[str, ...]:
        """What to put behind ``vllm serve MODEL``."""
        if self.budget is None or self.setup is None:
            return ()
        asked, share = self.request, self.budget.utilization
        is_default = share == default_utilization(asked.versions.release_of("vllm"))
        sizes = {
            "--tensor-parallel-size": asked.parallel.tensor,
            "--pipeline-parallel-size": asked.parallel.pipeline,
            "--decode-context-parallel-size": asked.parallel.decode_context,
        }
        return (
            *(part for name, size in sizes.items() if size > 1 for part in (name, str(size))),
            *(("--max-model-len", str(asked.max_model_len)) if asked.max_model_len else ()),
            *(("--kv-cache-dtype", asked.kv_cache_dtype) if asked.kv_cache_dtype != "auto" else ()),
            *(() if is_default else ("--gpu-memory-utilization", str(share))),
            *("--kv-transfer-config", json.dumps(self.setup.kv_transfer_config)),
        )

    @property
    def lmcache_config(self) -> Mapping[str, Any]:
        """LMCache's options by their names in configuration files."""
        return {} if self.setup is None else self.setup.options

    @property
    def environment(self) -> Mapping[str, str]:
        """The same as variables. LMCache needs either, and the variables win."""
        return {} if self.setup is None else self.setup.environment

    def to_json(self) -> dict[str, Any]:
        """The plan for programs. Keys stay as they are."""
        geometry, budget = self.geometry, self.budget
        return {
            "kv_cache": budget is not None,
            "reason": None if budget else self.reasons[0],
            "way": self.adapter.name if self.adapter and budget else None,
            "refused": dict(self.refused),
            # Both follow from a start command too.
            "namespace": None,
            "start_command": None,
            "model": {
                "name": self.request.model.name,
                "model_type": geometry.model_type,
                "max_model_len": self.max_model_len,
                "kv_dtype": geometry.dtype,
                "warnings": list(geometry.warnings),
            },
            "geometry": {
                "kv_bytes_per_token": geometry.bytes_per_token,
                "kv_bytes_per_token_per_gpu": self.share.bytes_per_token,
                "kv_bytes_per_token_no_hybrid": geometry.bytes_per_token_no_hybrid,
                "constant_bytes_per_sequence": geometry.constant_bytes_per_sequence,
                "layers": [
                    {
                        "kind": str(group.cache.kind),
                        "count": group.count,
                        "bytes_per_token": group.bytes_per_token,
                        "window": group.cache.window,
                        "constant_bytes": group.constant_bytes,
                    }
                    for group in geometry.groups
                ],
            },
            "budget": {
                "gpu_memory_bytes": self.gpu.memory_bytes,
                "weights_bytes_per_gpu": self.gpu.weights_bytes,
                "weights_source": self.weights.source,
                "overhead_bytes": self.gpu.overhead.likely,
                "overhead_low_bytes": self.gpu.overhead.low,
                "overhead_high_bytes": self.gpu.overhead.high,
                "kv_pool_bytes_before": self.pool_bytes_before,
                "buffer_bytes": budget.buffer_bytes if budget else 0,
                "beside_bytes": self.beside_bytes,
                "kv_pool_bytes_after": self.pool_bytes_after,
                "gpu_memory_utilization": float(
                    budget.utilization if budget else self.gpu.utilization
                ),
                "resident_contexts": self.resident_contexts,
                "offload": budget is not None,
                "reasons": list(self.reasons),
            },
            "engine": {
                "environment": dict(self.environment),
                "lmcache_config": dict(self.lmcache_config),
                "arguments": list(self.arguments),
            },
        }


def _check_context(max_model_len: int, tokens: int | None) -> None:
    """Whether a context of that length can exist.

    Raises:
        SizeError: it is longer than the longest.
    """
    if tokens is not None and tokens > max_model_len:
        raise SizeError(
            f"a context of {tokens} tokens is longer than the longest of {max_model_len}; "
            "raise --max-model-len or lower --context"
        )


def _namespace(request: SizingRequest, geometry: Geometry, adapter: EngineAdapter) -> Namespace:
    """A directory of its own for everything that must not be shared."""
    model = request.model
    written = json.dumps(model.config, sort_keys=True, default=str)
    return namespace_of({
        "model": model.name,
        "config": xxhash.xxh3_128_hexdigest(written.encode()),
        "weights": fingerprint(model.files) if model.files else None,
        "kv_dtype": geometry.dtype,
        "parallel": attrs.asdict(request.parallel),
        "vllm": request.vllm_version,
        "lmcache": request.lmcache_version,
        "chunk_tokens": request.chunk_tokens,
        "format": adapter.storage_format(request.versions),
    })


def _host(request: SizingRequest, adapter: EngineAdapter, gpu: GpuRequest) -> HostMemory:
    """The host memory of each GPU, as much as is of use."""
    return divide_host(
        adapter.host_need,
        HostRequest(
            limit_bytes=None,
            ranks=request.parallel.gpus,
            context_bytes=gpu.context_bytes,
            context_tokens=gpu.context_tokens,
            chunk_bytes=gpu.chunk_bytes,
        ),
    )


def _setup(
    request: SizingRequest,
    geometry: Geometry,
    adapter: EngineAdapter,
    gpu: GpuRequest,
    budget: Budget,
) -> EngineSetup:
    namespace = _namespace(request, geometry, adapter)
    setup = adapter.setup(
        EngineRequest(
            storage=Settings().mount_point / namespace.name,
            files=PurePosixPath("/"),
            session=namespace.name,
            hash_seed=namespace.hash_seed,
            versions=request.versions,
            buffer_bytes=budget.buffer_bytes or None,
            host_bytes=_host(request, adapter, gpu).size,
            chunk_tokens=request.chunk_tokens,
        )
    )
    # Nobody has put a file anywhere; the variables say everything, and the version is certain.
    others = {variable(name) for name in BUFFER_OPTIONS if name not in setup.options}
    environment = {
        k: v for k, v in setup.environment.items() if k not in (CONFIG_VARIABLE, *others)
    }
    return attrs.evolve(setup, environment=environment)


def _notes(request: SizingRequest, geometry: Geometry, *, hybrid: bool) -> tuple[str, ...]:
    assumed = request.memory_bytes is None
    used = request.parallel.gpus
    idle = request.gpus is not None and request.gpus > used
    return (
        *((f"only {used} of {request.gpus} GPUs are used",) if idle else ()),
        *((f"{gib(ASSUMED_MEMORY_BYTES)} of memory per GPU are assumed",) if assumed else ()),
        *(() if hybrid else hybrid_note(geometry)),
        *(
            ()
            if request.model.files
            else (
                "the weights were not seen: use another directory for each set of weights, or "
                "their caches mix",
            )
        ),
    )


def _gpu(
    request: SizingRequest, share: GpuShare, weights: Weights, tokens: int, *, hybrid: bool
) -> GpuRequest:
    """One GPU, before anything of it is given to a way."""
    memory = request.memory_bytes or ASSUMED_MEMORY_BYTES
    return GpuRequest(
        memory_bytes=memory,
        weights_bytes=share.weights_bytes(weights.total_bytes),
        context_bytes=share.sequence_bytes(tokens, hybrid=hybrid),
        context_bytes_without=share.sequence_bytes(tokens, hybrid=True),
        context_tokens=tokens,
        chunk_bytes=request.chunk_tokens * share.bytes_per_token_no_hybrid,
        concurrent_transfers=request.concurrent_transfers,
        utilization=request.utilization or default_utilization(request.versions.release_of("vllm")),
        pinned=request.pinned,
        overhead=overhead_of(read_widths(request.model.config), share, memory, request.versions)
        if request.overhead_bytes is None
        else Overhead.exactly(request.overhead_bytes),
    )


def _beside(adapter: EngineAdapter, gpu: GpuRequest) -> int:
    return adapter.gpu_process_bytes + adapter.gpu_staged_chunks * gpu.chunk_bytes


def size(request: SizingRequest) -> Sizing:
    """Plans for sessions of one model.

    The ways are tried in the order in which a session would try them, on a node with GPUDirect
    Storage.

    Raises:
        ModelError: the model cannot be understood, or not be divided so.
        EngineVersionError: a version is none, or too old.
        SizeError: sizes contradict each other.
    """
    check_vllm(request.vllm_version)
    check_lmcache(request.lmcache_version)
    model = request.model
    geometry = read_geometry(
        model.config,
        file=model.file,
        kv_cache_dtype=request.kv_cache_dtype,
        vllm=release_of(request.vllm_version),
    )
    share = geometry.per_gpu(request.parallel)
    if request.weights_bytes is not None:
        weights = Weights(request.weights_bytes, "as given")
    else:
        weights = model.weights or estimate_weights(model.config, model.file)
    tokens = request.max_model_len or geometry.max_model_len
    _check_context(tokens, request.context_tokens)
    without = _gpu(request, share, weights, tokens, hybrid=True)
    refused: dict[str, str] = {}
    try:
        refuse_geometry(geometry)
        traits = geometry_traits(geometry) | {Trait.GPUS}
        if request.parallel.decode_context > 1:
            traits |= {Trait.CONTEXT_PARALLEL}
        if request.is_fraction:
            traits |= {Trait.FRACTION}
        selection = select(Program.VLLM, _DEVICE, request.versions, traits)
        refused.update(selection.refused)
        for adapter in (adapter_named(way.adapter) for way in selection.ways):
            hybrid = adapter.has_hybrid_manager(request.versions)
            gpu = _gpu(request, share, weights, tokens, hybrid=hybrid)
            try:
                budget = divide(gpu) if adapter.gpu_buffer else keep(gpu, _beside(adapter, gpu))
                setup = _setup(request, geometry, adapter, gpu, budget)
            except DeclinedError as e:
                refused[adapter.name] = str(e)
                continue
            reasons = (
                *budget.notes,
                *_notes(request, geometry, hybrid=hybrid),
            )
            return Sizing(
                request, geometry, share, weights, gpu, budget, setup, reasons, adapter, refused
            )
        raise DeclinedError(summary(refused))
    except DeclinedError as e:
        reasons = (str(e), *_notes(request, geometry, hybrid=True))
        return Sizing(
            request, geometry, share, weights, without, None, None, reasons, None, refused
        )
