"""Divides a GPU's memory between weights, vLLM's KV pool and LMCache's transfer buffer.

vLLM sizes its KV pool first, as a share of the whole GPU (``gpu_memory_utilization``), and starts
the connector afterwards. The buffer therefore lies outside that share, and the share must come
down by as much.
"""

from __future__ import annotations

from decimal import ROUND_FLOOR, Decimal

import attrs

from ..errors import DeclinedError
from ..policy.settings import DEFAULT_CONCURRENT_TRANSFERS
from ..sizes import GIB, MIB, gib

#: vLLM's long-standing default share, from which the buffer is taken.
DEFAULT_UTILIZATION = Decimal("0.9")

#: What vLLM needs on each GPU besides weights and KV pool: CUDA context, activations of one batch,
#: CUDA graphs, NCCL. Measured on the reference system (80 GiB GPUs, a 123 B model, TP 8).
DEFAULT_OVERHEAD_BYTES = 3 * GIB

#: What a pinned share leaves to others than the buffer.
PINNED_RESERVE_BYTES = 3 * GIB // 2

#: LMCache transfers in batches of chunks; fewer than this many make every transfer a queue.
MIN_BUFFER_CHUNKS = 64

#: Percent on top of the contexts themselves: alignment and headers.
_MARGIN_PERCENT = 105


@attrs.frozen
class GpuRequest:
    """What the budget is computed from. Bytes are those of one GPU, or of the share of one."""

    memory_bytes: int
    weights_bytes: int
    context_bytes: int
    """Of the longest context that has to fit."""
    context_tokens: int
    chunk_bytes: int
    """Of one chunk, in which contexts are stored and loaded."""
    concurrent_transfers: int = DEFAULT_CONCURRENT_TRANSFERS
    utilization: Decimal = DEFAULT_UTILIZATION
    utilization_floor: Decimal = Decimal(0)
    """The buffer may not take so much that the utilization falls below this."""
    """vLLM's share before the buffer is taken from it."""
    pinned: bool = False
    """The share is the user's, and stays as it is."""
    buffer_bytes: int | None = None
    """Fixed by the user; None: the plan chooses."""
    overhead_bytes: int = DEFAULT_OVERHEAD_BYTES


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


def _round_up(size: int, unit: int) -> int:
    return -(-size // unit) * unit


def pool_bytes(request: GpuRequest, utilization: Decimal) -> int:
    """What is left for vLLM's KV pool. Negative where not even the weights fit."""
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
    return MIN_BUFFER_CHUNKS * request.chunk_bytes


def _result(
    request: GpuRequest, buffer_bytes: int, utilization: Decimal, notes: tuple[str, ...] = ()
) -> Budget:
    pool = pool_bytes(request, utilization)
    return Budget(
        memory_bytes=request.memory_bytes,
        weights_bytes=request.weights_bytes,
        overhead_bytes=request.overhead_bytes,
        buffer_bytes=buffer_bytes,
        pool_bytes_before=pool_bytes(request, request.utilization),
        pool_bytes_after=pool,
        utilization=utilization,
        resident_contexts=max(0, pool) // request.context_bytes,
        notes=notes,
    )


def _full_buffer_utilization(request: GpuRequest, wanted: int) -> Decimal | None:
    """The pinned share that would leave room for the whole buffer; None where no share does."""
    reserve = Decimal(PINNED_RESERVE_BYTES) / request.memory_bytes
    full = _utilization_beside(request, Decimal(1) - reserve, wanted)
    return full if pool_bytes(request, full) >= request.context_bytes else None


def _pinned(request: GpuRequest, wanted: int) -> Budget:
    utilization = request.utilization
    beside = request.memory_bytes - int(utilization * request.memory_bytes) - PINNED_RESERVE_BYTES
    buffer_bytes = min(wanted, beside // MIB * MIB)
    full = _full_buffer_utilization(request, wanted)
    if buffer_bytes < _least_buffer_bytes(request):
        remedy = f"lower it to {full}" if full is not None else "use more or larger GPUs"
        raise DeclinedError(
            f"gpu_memory_utilization is fixed at {utilization}, which leaves "
            f"{gib(max(0, beside))} per GPU beside vLLM; the transfer buffer needs at least "
            f"{gib(_least_buffer_bytes(request))}; {remedy}"
        )
    notes: tuple[str, ...] = ()
    if buffer_bytes < wanted:
        remedy = (
            f"{full} would give the full buffer"
            if full is not None
            else "with the full buffer, one context of the longest length would not fit any more"
        )
        notes = (
            f"gpu_memory_utilization is fixed at {utilization}, so the buffer is "
            f"{gib(buffer_bytes)} instead of {gib(wanted)}; {remedy}",
        )
    return _result(request, buffer_bytes, utilization, notes)


def divide(request: GpuRequest) -> Budget:
    """The buffer and the utilization that goes with it.

    Raises:
        DeclinedError: not even one context fits, or no useful buffer does.
    """
    pool = pool_bytes(request, request.utilization)
    if pool < 0:
        raise DeclinedError(
            f"{gib(request.weights_bytes)} of weights and {gib(request.overhead_bytes)} of "
            f"overhead do not fit into {request.utilization} of {gib(request.memory_bytes)} per "
            "GPU; use more or larger GPUs"
        )
    if pool < request.context_bytes:
        raise DeclinedError(
            f"vLLM's KV pool would have {gib(pool)} per GPU, and one context of "
            f"{request.context_tokens} tokens takes {gib(request.context_bytes)}; "
            "lower --max-model-len or use more GPUs"
        )
    wanted = request.buffer_bytes or wanted_buffer_bytes(request)
    if request.pinned:
        return _pinned(request, wanted)
    buffer_bytes = _largest_buffer(request, wanted)
    if buffer_bytes < (wanted if request.buffer_bytes else _least_buffer_bytes(request)):
        if _floor_decides(request):
            raise DeclinedError(
                f"a transfer buffer of {gib(wanted)} per GPU takes gpu_memory_utilization below "
                f"the policy's utilization-floor {request.utilization_floor}, and so does any "
                "smaller useful one; ask for a smaller buffer, or have the floor lowered"
            )
        raise DeclinedError(
            f"a transfer buffer of {gib(wanted)} per GPU leaves vLLM's KV pool less than one "
            f"context of {request.context_tokens} tokens ({gib(request.context_bytes)}), and "
            "so does any smaller useful one; lower --max-model-len or use more GPUs"
        )
    notes: tuple[str, ...] = ()
    if buffer_bytes < wanted:
        kept = (
            "gpu_memory_utilization does not fall below the policy's utilization-floor "
            f"{request.utilization_floor}"
            if _floor_decides(request)
            else f"one context of {request.context_tokens} tokens still fits vLLM's KV pool"
        )
        notes = (f"the buffer is {gib(buffer_bytes)} instead of {gib(wanted)}, so that {kept}",)
    return _result(
        request,
        buffer_bytes,
        _utilization_beside(request, request.utilization, buffer_bytes),
        notes,
    )


def _context_share(request: GpuRequest) -> Decimal:
    """The utilization that leaves room for one context and no more."""
    needed = request.weights_bytes + request.overhead_bytes + request.context_bytes
    return Decimal(needed) / Decimal(request.memory_bytes)


def _floor_decides(request: GpuRequest) -> bool:
    return request.utilization_floor > _context_share(request)


def _largest_buffer(request: GpuRequest, wanted: int) -> int:
    """The wanted buffer, or less in whole GiB, so that one context still fits the pool and the
    utilization does not fall below its floor."""
    least_share = max(request.utilization_floor, _context_share(request))
    room = int((request.utilization - least_share) * request.memory_bytes)
    buffer_bytes = wanted if wanted <= room else room // GIB * GIB
    # The share is cut to hundredths, which can take one more GiB or two.
    while buffer_bytes > 0 and not _leaves_enough(request, buffer_bytes):
        buffer_bytes -= GIB
    return max(0, buffer_bytes)


def _leaves_enough(request: GpuRequest, buffer_bytes: int) -> bool:
    utilization = _utilization_beside(request, request.utilization, buffer_bytes)
    return (
        utilization >= request.utilization_floor
        and pool_bytes(request, utilization) >= request.context_bytes
    )
