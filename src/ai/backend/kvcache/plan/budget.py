"""Divides a GPU's memory between weights, vLLM's KV pool and LMCache's transfer buffer.

vLLM sizes its KV pool first, as a share of the whole GPU (``gpu_memory_utilization``), and starts
the connector afterwards. The buffer therefore lies outside that share, and the share must come
down by as much.

What vLLM takes besides weights and pool is an estimate with bounds. One context of the longest
length has to fit the pool even at the upper bound wherever the share is lowered; that nothing fits
is said only where it is so even at the lower bound.
"""

from __future__ import annotations

from decimal import ROUND_FLOOR, Decimal

from ..errors import DeclinedError
from ..sizes import GIB, MIB, gib
from .gpu import MIN_BUFFER_CHUNKS, SHARE_WITH_BUFFER, Budget, GpuRequest, pool_bytes

#: What a pinned share leaves to others than the buffer.
PINNED_RESERVE_BYTES = 3 * GIB // 2

#: Percent on top of the contexts themselves: alignment and headers.
_MARGIN_PERCENT = 105

_NO_START = "so vLLM does not start, with KV cache or without"


def _round_up(size: int, unit: int) -> int:
    return -(-size // unit) * unit


def wanted_buffer_bytes(request: GpuRequest) -> int:
    """Concurrent transfers of one whole context each, 5 % more, in whole GiB."""
    contexts = request.concurrent_transfers * request.context_bytes * _MARGIN_PERCENT // 100
    return _round_up(max(contexts, request.least_buffer_bytes), GIB)


def divide(request: GpuRequest) -> Budget:
    """The buffer and the utilization that goes with it.

    Raises:
        DeclinedError: not even one context fits, or no useful buffer does.
    """
    _refuse_what_cannot_start(request)
    _refuse_larger_contexts(request)
    wanted = request.buffer_bytes or wanted_buffer_bytes(request)
    if request.fixed_pool_bytes is not None:
        return _beside_fixed_pool(request, wanted)
    if request.pinned:
        return _beside_pinned_share(request, wanted)
    return _taken_from_share(request, wanted)


def keep(request: GpuRequest, beside_bytes: int) -> Budget:
    """The same for a way that takes nothing of vLLM's share.

    Args:
        beside_bytes: what it takes outside of that share.

    Raises:
        DeclinedError: vLLM would not start, or what lies beside it finds no room.
    """
    _refuse_what_cannot_start(request)
    _refuse_larger_contexts(request)
    taken = int(request.utilization * request.memory_bytes)
    if request.fixed_pool_bytes is not None:
        taken = request.weights_bytes + request.overhead.likely + request.fixed_pool_bytes
    left = max(0, request.memory_bytes - taken - request.overhead.graphs_beside_likely)
    if beside_bytes and left < beside_bytes:
        lower = _utilization_beside(
            request, Decimal(1), beside_bytes + request.overhead.graphs_beside_likely
        )
        remedy = (
            "lower --kv-cache-memory-bytes"
            if request.fixed_pool_bytes is not None
            else f"lower --gpu-memory-utilization to {lower}"
        )
        raise DeclinedError(
            f"this way takes about {gib(beside_bytes)} of each GPU beside vLLM, which leaves "
            f"{gib(left)}; {remedy}"
        )
    return _result(request, 0, request.utilization)


def _refuse_larger_contexts(request: GpuRequest) -> None:
    """Raises where contexts take more than without KV cache, and may not fit any more."""
    without = request.context_bytes_without
    if without is None or request.context_bytes <= without:
        return
    pool = pool_bytes(request, request.utilization, request.overhead.high)
    if pool < request.context_bytes:
        raise DeclinedError(
            f"vLLM turns its hybrid KV cache manager off for this way, so one context of "
            f"{request.context_tokens} tokens takes {gib(request.context_bytes)} instead of "
            f"{gib(without)} per GPU, and vLLM's KV pool may have no more than "
            f"{gib(max(0, pool))}; lower --max-model-len or use more GPUs"
        )


def _refuse_what_cannot_start(request: GpuRequest) -> None:
    """Raises where vLLM starts neither with KV cache nor without."""
    least = request.context_bytes_without
    least = request.context_bytes if least is None else min(least, request.context_bytes)
    if request.fixed_pool_bytes is not None:
        pool = request.fixed_pool_bytes
        has = f"--kv-cache-memory-bytes gives vLLM's KV pool {gib(pool)} per GPU"
        remedy = "raise it or lower --max-model-len"
    else:
        pool = pool_bytes(request, request.utilization, request.overhead.low)
        pool += request.spared_bytes
        has = f"vLLM's KV pool would have {_at_most(request)}{gib(max(0, pool))} per GPU"
        remedy = "lower --max-model-len or use more GPUs"
    if pool < 0:
        raise DeclinedError(
            f"{gib(request.weights_bytes)} of weights and {_at_least(request)}"
            f"{gib(request.overhead.low)} of overhead do not fit into {request.utilization} of "
            f"{gib(request.memory_bytes)} per GPU, {_NO_START}; use more or larger GPUs"
        )
    if pool < least and not request.fits_length:
        raise DeclinedError(
            f"{has}, and one context of {request.context_tokens} tokens takes {gib(least)}, "
            f"{_NO_START}; {remedy}"
        )


def _is_exact(request: GpuRequest) -> bool:
    return request.overhead.low == request.overhead.high and not request.spared_bytes


def _at_least(request: GpuRequest) -> str:
    return "" if _is_exact(request) else "at least "


def _at_most(request: GpuRequest) -> str:
    return "" if _is_exact(request) else "at most "


def _result(
    request: GpuRequest, buffer_bytes: int, utilization: Decimal, notes: tuple[str, ...] = ()
) -> Budget:
    pool = pool_bytes(request, utilization)
    return Budget(
        memory_bytes=request.memory_bytes,
        weights_bytes=request.weights_bytes,
        overhead_bytes=request.overhead.likely,
        overhead_low_bytes=request.overhead.low,
        overhead_high_bytes=request.overhead.high,
        buffer_bytes=buffer_bytes,
        pool_bytes_before=pool_bytes(request, request.utilization),
        pool_bytes_after=pool,
        utilization_before=request.utilization,
        utilization=utilization,
        resident_contexts=max(0, pool) // request.context_bytes,
        notes=(*notes, *(_small_buffer_notes(request, buffer_bytes) if buffer_bytes else ())),
    )


def _small_buffer_notes(request: GpuRequest, buffer_bytes: int) -> tuple[str, ...]:
    """What to know of a buffer that is smaller than what passes through it."""
    if buffer_bytes < request.least_buffer_bytes:
        return (
            f"the buffer of {gib(buffer_bytes)} is smaller than {MIN_BUFFER_CHUNKS} chunks "
            f"({gib(request.least_buffer_bytes)}), the least that is of use: transfers wait for "
            "each other, and little of a context is loaded or stored at a time",
        )
    if buffer_bytes < request.context_bytes:
        tokens = request.context_tokens * buffer_bytes // request.context_bytes
        return (
            f"the buffer of {gib(buffer_bytes)} holds less than one context of "
            f"{request.context_tokens} tokens ({gib(request.context_bytes)}): contexts of more "
            f"than about {tokens} tokens are not loaded whole",
        )
    return ()


def _shrunk(request: GpuRequest, wanted: int, beside: int) -> int:
    """The buffer that fits beside vLLM. One that the user fixed is not shrunk."""
    if request.buffer_bytes is not None:
        return wanted if wanted <= beside else 0
    return max(0, min(wanted, beside // MIB * MIB))


def _beside_pinned_share(request: GpuRequest, wanted: int) -> Budget:
    utilization = request.utilization
    reserve = PINNED_RESERVE_BYTES + request.overhead.graphs_beside
    beside = request.memory_bytes - int(utilization * request.memory_bytes) - reserve
    buffer_bytes = _shrunk(request, wanted, beside)
    full = _full_buffer_utilization(request, wanted, reserve)
    if not _is_useful(request, buffer_bytes):
        remedy = f"lower it to {full}" if full is not None else "use more or larger GPUs"
        raise DeclinedError(
            f"gpu_memory_utilization is fixed at {utilization}, which leaves "
            f"{gib(max(0, beside))} per GPU beside vLLM; the transfer buffer needs "
            f"{_needed(request)}; {remedy}"
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


def _beside_fixed_pool(request: GpuRequest, wanted: int) -> Budget:
    pool = pool_bytes(request, request.utilization)
    vllm = request.weights_bytes + request.overhead.high + request.overhead.graphs_beside + pool
    beside = request.memory_bytes - vllm - PINNED_RESERVE_BYTES
    buffer_bytes = _shrunk(request, wanted, beside)
    fixed = f"--kv-cache-memory-bytes fixes vLLM's KV pool at {gib(pool)}"
    if not _is_useful(request, buffer_bytes):
        raise DeclinedError(
            f"{fixed}, which leaves {gib(max(0, beside))} per GPU beside vLLM; the transfer buffer "
            f"needs {_needed(request)}; lower --kv-cache-memory-bytes or use larger GPUs"
        )
    notes: tuple[str, ...] = ()
    if buffer_bytes < wanted:
        notes = (
            f"{fixed}, so the buffer is {gib(buffer_bytes)} instead of {gib(wanted)}; a smaller "
            "pool leaves more to it",
        )
    return _result(request, buffer_bytes, request.utilization, notes)


def _is_useful(request: GpuRequest, buffer_bytes: int) -> bool:
    """A size that the user chose is taken as it is, if it fits at all."""
    return buffer_bytes > 0 and (
        request.buffer_bytes is not None or buffer_bytes >= request.least_buffer_bytes
    )


def _needed(request: GpuRequest) -> str:
    if request.buffer_bytes is not None:
        return gib(request.buffer_bytes)
    return f"at least {gib(request.least_buffer_bytes)}"


def _full_buffer_utilization(request: GpuRequest, wanted: int, reserve: int) -> Decimal | None:
    """The pinned share that would leave room for the whole buffer; None where no share does."""
    full = _utilization_beside(request, Decimal(1), wanted + reserve)
    pool = pool_bytes(request, full, request.overhead.high)
    return full if pool >= request.context_bytes else None


def _utilization_beside(request: GpuRequest, utilization: Decimal, buffer_bytes: int) -> Decimal:
    lowered = utilization - Decimal(buffer_bytes) / request.memory_bytes
    return lowered.quantize(Decimal("0.01"), ROUND_FLOOR).normalize()


def _lowered(request: GpuRequest, buffer_bytes: int) -> Decimal:
    """vLLM's share beside a buffer that is taken from it."""
    together = min(request.utilization, SHARE_WITH_BUFFER)
    return _utilization_beside(request, together, buffer_bytes)


def _taken_from_share(request: GpuRequest, wanted: int) -> Budget:
    largest = _largest_buffer(request, wanted)
    chosen = request.buffer_bytes is None
    if largest < (request.least_buffer_bytes if chosen else wanted):
        raise DeclinedError(_no_room(request, wanted, largest))
    notes: tuple[str, ...] = ()
    if largest < wanted:
        kept = (
            "gpu_memory_utilization does not fall below the policy's utilization-floor "
            f"{request.utilization_floor}"
            if _floor_decides(request)
            else f"one context of {request.context_tokens} tokens still fits vLLM's KV pool"
            + _whatever_the_overhead(request)
        )
        notes = (f"the buffer is {gib(largest)} instead of {gib(wanted)}, so that {kept}",)
    return _result(request, largest, _lowered(request, largest), notes)


def _whatever_the_overhead(request: GpuRequest) -> str:
    if _is_exact(request):
        return ""
    return f" even where vLLM takes {gib(request.overhead.high)} besides"


def _no_room(request: GpuRequest, wanted: int, largest: int) -> str:
    """Why a buffer cannot be taken, and what can be done about it."""
    if request.buffer_bytes is None:
        others, smaller = ", and so does any smaller useful one", False
    else:
        smaller = largest >= request.least_buffer_bytes
        others = f"; up to {gib(largest)} fit" if smaller else ""
    if _floor_decides(request):
        remedy = "ask for a smaller buffer, or have the floor lowered"
        return (
            f"a transfer buffer of {gib(wanted)} per GPU takes gpu_memory_utilization below "
            f"the policy's utilization-floor {request.utilization_floor}{others}; {remedy}"
        )
    remedy = "ask for a smaller buffer, or " if smaller else ""
    leaves = "leaves" if _is_exact(request) else "could leave"
    shortened = (
        ", and with --max-model-len auto vLLM would make contexts shorter"
        if request.fits_length
        else ""
    )
    return (
        f"a transfer buffer of {gib(wanted)} per GPU {leaves} vLLM's KV pool less than one "
        f"context of {request.context_tokens} tokens ({gib(request.context_bytes)})"
        f"{_whatever_is_taken(request)}{shortened}{others}; {remedy}lower --max-model-len or use "
        "more GPUs"
    )


def _whatever_is_taken(request: GpuRequest) -> str:
    if _is_exact(request):
        return ""
    return f", since vLLM may take up to {gib(request.overhead.high)} besides"


def _context_share(request: GpuRequest) -> Decimal:
    """The utilization that leaves room for one context and no more."""
    needed = request.weights_bytes + request.overhead.high + request.context_bytes
    return Decimal(needed) / Decimal(request.memory_bytes)


def _floor_decides(request: GpuRequest) -> bool:
    return request.utilization_floor > _context_share(request)


def _largest_buffer(request: GpuRequest, wanted: int) -> int:
    """The wanted buffer, or less in whole GiB, or the smallest useful one; 0 where none fits.

    One context fits the pool beside it, and the utilization does not fall below its floor.
    """
    together = min(request.utilization, SHARE_WITH_BUFFER)
    least_share = max(request.utilization_floor, _context_share(request))
    room = int((together - least_share) * request.memory_bytes)
    buffer_bytes = wanted if wanted <= room else room // GIB * GIB
    # The share is cut to hundredths, which can take one more GiB or two.
    while buffer_bytes > 0 and not _leaves_enough(request, buffer_bytes):
        buffer_bytes -= GIB
    least = _round_up(request.least_buffer_bytes, MIB)
    if buffer_bytes < least <= wanted and _leaves_enough(request, least):
        return least
    return max(0, buffer_bytes)


def _leaves_enough(request: GpuRequest, buffer_bytes: int) -> bool:
    utilization = _lowered(request, buffer_bytes)
    return (
        utilization >= request.utilization_floor
        and pool_bytes(request, utilization, request.overhead.high) >= request.context_bytes
    )
