"""What a session's engine gets of GPU and host memory for the way to the folder."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from ..engine.adapter import EngineAdapter
from ..engine.arguments import EngineArguments
from ..engine.command import Program
from ..engine.versions import BUFFER_VARIABLES, Versions
from ..errors import StartCommandError
from ..model.parallel import GpuShare, Parallel
from ..policy.request import BUFFER
from ..policy.settings import Settings
from ..sizes import MIB, gib
from .budget import divide, keep
from .gpu import Budget, GpuRequest, default_utilization
from .gpu_memory import (
    engine_load,
    host_bytes_besides,
    overhead_of,
    refuse_unclear_memory,
    share_of,
    weights_on_gpu,
)
from .host import HostMemory, HostRequest, divide_host
from .model import Model
from .plan import Decision
from .session import Session
from .start import EngineStart


@attrs.frozen
class Context:
    """The longest context of a session, as one rank keeps it."""

    adapter: EngineAdapter
    versions: Versions
    model: Model
    parallel: Parallel
    engines: int
    """That run at the same time, each with all ranks."""
    tokens: int

    @property
    def hybrid(self) -> bool:
        """Whether vLLM keeps its hybrid KV cache manager on."""
        return self.adapter.has_hybrid_manager(self.versions)

    @property
    def ranks(self) -> int:
        return self.engines * self.parallel.gpus

    @property
    def share(self) -> GpuShare:
        return self.model.geometry.per_gpu(self.parallel)

    @property
    def size(self) -> int:
        """In bytes."""
        return self.share.sequence_bytes(self.tokens, hybrid=self.hybrid)

    @property
    def size_without(self) -> int:
        """The same where the session runs without KV cache, with vLLM's hybrid manager on."""
        return self.share.sequence_bytes(self.tokens, hybrid=True)

    @property
    def chunk_bytes(self) -> int:
        """Of one chunk, with every layer in full."""
        return self.adapter.chunk_tokens * self.share.bytes_per_token_no_hybrid


@attrs.frozen
class Memory:
    """What is given."""

    gpu: Budget | None
    """None: the adapter takes nothing of the GPUs."""
    host: HostMemory
    decisions: tuple[Decision, ...]


def _user_buffer_bytes(environ: Mapping[str, str]) -> int | None:
    for variable in BUFFER_VARIABLES:
        value = environ.get(variable)
        if value is None:
            continue
        if not value.isascii() or not value.isdigit() or int(value) == 0:
            raise StartCommandError(f"{variable} = {value!r} is not a number of MiB")
        return int(value) * MIB
    return None


def _divide_gpu(
    session: Session, settings: Settings, start: EngineStart, context: Context
) -> Budget | None:
    """The budget of one GPU, where the adapter takes a part of vLLM's share of it.

    Raises:
        DeclinedError: no buffer fits; or, whatever the adapter takes, the engine would not start.
    """
    if session.gpus is None or start.program is Program.SGLANG:
        # SGLang sizes its pool in its own way, and its adapter takes nothing of the GPUs.
        return None
    arguments, adapter, share = start.arguments, context.adapter, context.share
    if adapter.gpu_buffer:
        refuse_unclear_memory(arguments, session.environ)
    weights = weights_on_gpu(arguments, share, context.engines, context.model.weights.total_bytes)
    default = default_utilization(context.versions.release_of("vllm"))
    request = GpuRequest(
        memory_bytes=session.gpus.memory_bytes,
        weights_bytes=weights.size,
        spared_bytes=weights.spared,
        context_bytes=context.size,
        context_bytes_without=context.size_without,
        context_tokens=context.tokens,
        chunk_bytes=context.chunk_bytes,
        overhead=overhead_of(
            context.model.widths,
            share,
            session.gpus.memory_bytes,
            context.versions,
            engine_load(arguments, session.environ, session.gpus.model),
        ),
        concurrent_transfers=settings.concurrent_transfers,
        utilization=share_of(arguments, default),
        pinned=arguments.gpu_memory_utilization is not None,
        buffer_bytes=_user_buffer_bytes(session.environ) or settings.buffer_bytes,
        utilization_floor=settings.utilization_floor,
        fixed_pool_bytes=arguments.kv_cache_memory_bytes,
        fits_length=arguments.fits_length,
    )
    if adapter.gpu_buffer:
        return divide(request)
    beside = adapter.gpu_process_bytes + adapter.gpu_staged_chunks * context.chunk_bytes
    if arguments.num_gpu_blocks_override is None:
        keep(request, beside)
    return None


def _divide_host(
    session: Session, settings: Settings, start: EngineStart, context: Context
) -> HostMemory:
    need = context.adapter.host_need
    if session.gpus is None:
        # What an engine without GPUs leaves of the memory is its own pool's.
        need = attrs.evolve(need, most_bytes=need.unit_bytes)
    tier = settings.cpu_tier_bytes
    return divide_host(
        need,
        HostRequest(
            limit_bytes=session.memory_bytes,
            besides_bytes=host_bytes_besides(start.arguments, context.ranks),
            ranks=context.ranks,
            context_bytes=context.size,
            context_tokens=context.tokens,
            chunk_bytes=context.chunk_bytes,
            total_bytes=tier if tier and need.most_bytes is None else None,
            may_keep=tier != 0,
        ),
    )


def _decisions(
    session: Session,
    settings: Settings,
    start: EngineStart,
    gpu: Budget | None,
    host: HostMemory,
) -> tuple[Decision, ...]:
    use = "contexts stay in it" if host.keeps else "for transfers only"
    of_host = Decision("host_memory", gib(host.size * host.pools), f"{host.why}; {use}")
    if gpu is None:
        return (of_host,)
    by_user = next((v for v in BUFFER_VARIABLES if v in session.environ), None)
    if by_user is None and settings.buffer_bytes is not None:
        by_user = BUFFER
    overhead = f"{gib(gpu.overhead_low_bytes)} to {gib(gpu.overhead_high_bytes)}"
    return (
        Decision("overhead", gib(gpu.overhead_bytes), f"estimated, {overhead}"),
        Decision(
            "buffer",
            gib(gpu.buffer_bytes),
            f"set by the user in {by_user}" if by_user else "staging for whole contexts",
        ),
        Decision(
            "gpu_memory_utilization",
            str(gpu.utilization),
            _why_share(start.arguments),
        ),
        of_host,
    )


def _why_share(arguments: EngineArguments) -> str:
    if arguments.kv_cache_memory_bytes is not None:
        return "vLLM ignores it where --kv-cache-memory-bytes is given"
    if arguments.gpu_memory_utilization is not None:
        return "set by the user"
    return "lowered by the buffer, which lies outside it"


def divide_memory(
    session: Session, settings: Settings, start: EngineStart, context: Context
) -> Memory:
    """The memory on both sides of a transfer.

    Raises:
        DeclinedError: it is too little for the adapter.
        StartCommandError: the user's own size of the buffer is none.
    """
    gpu = _divide_gpu(session, settings, start, context)
    host = _divide_host(session, settings, start, context)
    return Memory(gpu, host, _decisions(session, settings, start, gpu, host))
