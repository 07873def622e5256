"""Divides a GPU's memory between weights, vLLM's KV pool and LMCache's transfer buffer.

vLLM sizes its KV pool first, as a share of the whole GPU (``gpu_memory_utilization``), and starts
the connector afterwards. The buffer therefore lies outside that share, and the share must come
down by as much.
"""

from __future__ import annotations

from decimal import ROUND_FLOOR, Decimal

import attrs

from ..errors import DeclinedError

GIB = 2**30
MIB = 2**20

#: vLLM's long-standing default share, from which the buffer is taken.
DEFAULT_UTILIZATION = Decimal("0.9")

#: CUDA context, activations and graphs per GPU.
DEFAULT_OVERHEAD_BYTES = 3 * GIB

#: What a pinned share leaves to others than the buffer.
PINNED_RESERVE_BYTES = 3 * GIB // 2

#: LMCache transfers in batches of chunks; fewer than this many make every transfer a queue.
MIN_BUFFER_CHUNKS = 64

#: Percent on top of the contexts themselves: alignment and headers.
_MARGIN_PERCENT = 105


@attrs.frozen
class GpuRequest:
    """What the budget is computed from. Bytes are those of one GPU."""

    memory_bytes: int
    weights_bytes: int
    bytes_per_token: int
    context_tokens: int
    """Tokens of the longest context that has to fit."""
    chunk_tokens: int
    concurrent_transfers: int
    utilization: Decimal | None = None
    """Fixed by the user; None: the plan chooses."""
    buffer_bytes: int | None = None
    """Fixed by the user; None: the plan chooses."""
    overhead_bytes: int = DEFAULT_OVERHEAD_BYTES

    @property
    def context_bytes(self) -> int:
        return self.bytes_per_token * self.context_tokens


@attrs.frozen
class Budget:
    """Where the memory of one GPU goes, in bytes."""

    memory_bytes: int
    weights_bytes: int
    overhead_bytes: int
    buffer_bytes: int
    pool_bytes_before: int
    pool_bytes_after: int
    utilization: Decimal
    resident_contexts: int
    """How many contexts of the longest length stay in the pool."""
    notes: tuple[str, ...]


def gib(size: int) -> str:
    """A size for people, such as ``24 GiB`` or ``1.5 GiB``."""
    return f"{size / GIB:.2f}".rstrip("0").rstrip(".") + " GiB"


def _round_up(size: int, unit: int) -> int:
    return -(-size // unit) * unit


def _pool_bytes(request: GpuRequest, utilization: Decimal) -> int:
    share = int(utilization * request.memory_bytes)
    return share - request.weights_bytes - request.overhead_bytes


def _utilization_beside(request: GpuRequest, utilization: Decimal, buffer_bytes: int) -> Decimal:
    lowered = utilization - Decimal(buffer_bytes) / request.memory_bytes
    return lowered.quantize(Decimal("0.01"), ROUND_FLOOR).normalize()


def wanted_buffer_bytes(request: GpuRequest) -> int:
    """Concurrent transfers of one whole context each, 5 % more, in whole GiB."""
    contexts = request.concurrent_transfers * request.context_bytes * _MARGIN_PERCENT // 100
    return _round_up(max(contexts, _least_buffer_bytes(request)), GIB)


def _least_buffer_bytes(request: GpuRequest) -> int:
    return MIN_BUFFER_CHUNKS * request.chunk_tokens * request.bytes_per_token


def _result(
    request: GpuRequest,
    buffer_bytes: int,
    before: Decimal,
    after: Decimal,
    notes: tuple[str, ...] = (),
) -> Budget:
    pool = _pool_bytes(request, after)
    return Budget(
        memory_bytes=request.memory_bytes,
        weights_bytes=request.weights_bytes,
        overhead_bytes=request.overhead_bytes,
        buffer_bytes=buffer_bytes,
        pool_bytes_before=_pool_bytes(request, before),
        pool_bytes_after=pool,
        utilization=after,
        resident_contexts=max(0, pool) // request.context_bytes,
        notes=notes,
    )


def _pinned(request: GpuRequest, utilization: Decimal, wanted: int) -> Budget:
    beside = request.memory_bytes - int(utilization * request.memory_bytes) - PINNED_RESERVE_BYTES
    buffer_bytes = min(wanted, beside // MIB * MIB)
    if buffer_bytes < _least_buffer_bytes(request):
        raise DeclinedError(
            f"gpu_memory_utilization is fixed at {utilization}, which leaves "
            f"{gib(max(0, beside))} per GPU beside vLLM; the transfer buffer needs at least "
            f"{gib(_least_buffer_bytes(request))}. "
            f"Lower it to {_utilization_beside(request, DEFAULT_UTILIZATION, wanted)}"
        )
    notes: tuple[str, ...] = ()
    if buffer_bytes < wanted:
        full = _utilization_beside(
            request, Decimal(1) - Decimal(PINNED_RESERVE_BYTES) / request.memory_bytes, wanted
        )
        notes = (
            f"gpu_memory_utilization is fixed at {utilization}, so the buffer is "
            f"{gib(buffer_bytes)} instead of {gib(wanted)}; {full} would give the full buffer",
        )
    return _result(request, buffer_bytes, utilization, utilization, notes)


def divide(request: GpuRequest) -> Budget:
    """The buffer and the utilization that goes with it.

    Raises:
        DeclinedError: not even one context fits, or no useful buffer does.
    """
    utilization = request.utilization or DEFAULT_UTILIZATION
    pool = _pool_bytes(request, utilization)
    if pool < request.context_bytes:
        raise DeclinedError(
            f"vLLM's KV pool would have {gib(max(0, pool))} per GPU, and one context of "
            f"{request.context_tokens} tokens takes {gib(request.context_bytes)}; "
            "lower --max-model-len or use more GPUs"
        )
    wanted = request.buffer_bytes or wanted_buffer_bytes(request)
    if request.utilization is not None:
        return _pinned(request, utilization, wanted)
    buffer_bytes = wanted
    while (
        _pool_bytes(request, _utilization_beside(request, utilization, buffer_bytes))
        < request.context_bytes
    ):
        buffer_bytes -= GIB
        if request.buffer_bytes or buffer_bytes < _least_buffer_bytes(request):
            raise DeclinedError(
                f"a transfer buffer of {gib(wanted)} per GPU leaves vLLM's KV pool less than one "
                f"context of {request.context_tokens} tokens ({gib(request.context_bytes)}), and "
                "so does any smaller useful one; lower --max-model-len or use more GPUs"
            )
    notes: tuple[str, ...] = ()
    if buffer_bytes < wanted:
        notes = (
            f"the buffer is {gib(buffer_bytes)} instead of {gib(wanted)}, so that one context of "
            f"{request.context_tokens} tokens still fits vLLM's KV pool",
        )
    return _result(
        request,
        buffer_bytes,
        utilization,
        _utilization_beside(request, utilization, buffer_bytes),
        notes,
    )
