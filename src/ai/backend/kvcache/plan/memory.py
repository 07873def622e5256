"""What a session's engine gets of GPU and host memory for the way to the folder."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal

import attrs

from ..engine.adapter import EngineAdapter
from ..engine.versions import BUFFER_VARIABLES, Versions
from ..errors import StartCommandError
from ..model.parallel import GpuShare, Parallel
from ..policy.request import BUFFER
from ..policy.settings import Settings
from ..sizes import MIB, gib
from .budget import DEFAULT_UTILIZATION, Budget, GpuRequest, divide
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
    def ranks(self) -> int:
        return self.engines * self.parallel.gpus

    @property
    def share(self) -> GpuShare:
        return self.model.geometry.per_gpu(self.parallel)

    @property
    def size(self) -> int:
        """In bytes."""
        return self.share.sequence_bytes(
            self.tokens, hybrid=self.adapter.has_hybrid_manager(self.versions)
        )

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
    """The budget of one GPU, where the adapter takes a part of it."""
    if session.gpus is None or not context.adapter.gpu_buffer:
        return None
    pinned = start.arguments.gpu_memory_utilization
    return divide(
        GpuRequest(
            memory_bytes=session.gpus.memory_bytes,
            weights_bytes=context.share.weights_bytes(context.model.weights.total_bytes),
            context_bytes=context.size,
            context_tokens=context.tokens,
            chunk_bytes=context.chunk_bytes,
            concurrent_transfers=settings.concurrent_transfers,
            utilization=DEFAULT_UTILIZATION if pinned is None else Decimal(pinned),
            pinned=pinned is not None,
            buffer_bytes=_user_buffer_bytes(session.environ) or settings.buffer_bytes,
            utilization_floor=settings.utilization_floor,
        )
    )


def _divide_host(session: Session, settings: Settings, context: Context) -> HostMemory:
    need = context.adapter.host_need
    if session.gpus is None:
        # What an engine without GPUs leaves of the memory is its own pool's.
        need = attrs.evolve(need, most_bytes=need.unit_bytes)
    tier = settings.cpu_tier_bytes
    return divide_host(
        need,
        HostRequest(
            limit_bytes=session.memory_bytes,
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
    pinned = start.arguments.gpu_memory_utilization is not None
    return (
        Decision(
            "buffer",
            gib(gpu.buffer_bytes),
            f"set by the user in {by_user}" if by_user else "staging for whole contexts",
        ),
        Decision(
            "gpu_memory_utilization",
            str(gpu.utilization),
            "set by the user" if pinned else "lowered by the buffer, which lies outside it",
        ),
        of_host,
    )


def divide_memory(
    session: Session, settings: Settings, start: EngineStart, context: Context
) -> Memory:
    """The memory on both sides of a transfer.

    Raises:
        DeclinedError: it is too little for the adapter.
        StartCommandError: the user's own size of the buffer is none.
    """
    gpu = _divide_gpu(session, settings, start, context)
    host = _divide_host(session, settings, context)
    return Memory(gpu, host, _decisions(session, settings, start, gpu, host))
