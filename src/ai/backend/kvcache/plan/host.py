"""How much of a session's host memory goes between the engine and the folder.

A container that exceeds its memory is killed, so what the engine itself takes is not reckoned to
the last byte: a quarter of the limit is taken and three are left alone, to the engine's processes,
the page cache of its weights and whatever else runs there.
"""

from __future__ import annotations

import attrs

from ..engine.adapter import HostNeed
from ..errors import DeclinedError
from ..sizes import GIB, gib

#: What part of a session's memory limit is taken.
_PART = 4


@attrs.frozen
class HostRequest:
    """What the division is computed from."""

    limit_bytes: int | None
    """Of the whole session. None: not known."""
    ranks: int
    context_bytes: int
    """Of the longest context, on one rank."""
    context_tokens: int
    chunk_bytes: int
    """On one rank."""
    besides_bytes: int = 0
    """What the engine was told to take of it besides."""
    total_bytes: int | None = None
    """For the whole session, as the settings say it. None: a part of the limit."""
    may_keep: bool = True
    """Whether contexts may stay in the memory, where there is room for that."""


@attrs.frozen
class HostMemory:
    """What one rank gets, or all together where they share it."""

    size: int
    """In bytes."""
    pools: int
    """How many there are of that size."""
    keeps: bool
    """Whether contexts stay in it."""
    why: str
    notes: tuple[str, ...] = ()


def _round_up(size: int, unit: int) -> int:
    return -(-size // unit) * unit


def _available(need: HostNeed, request: HostRequest, pools: int, least: int) -> tuple[int, str]:
    """(bytes of one pool, where they come from)."""
    if request.total_bytes is not None:
        return request.total_bytes // pools, "as the settings say"
    if request.limit_bytes is not None and request.besides_bytes:
        left = max(0, request.limit_bytes - request.besides_bytes)
        part = min(left // _PART, max(0, left - need.leave_bytes))
        return part // pools, (
            f"a quarter of what the weights in host memory ({gib(request.besides_bytes)}) leave of "
            f"the session's {gib(request.limit_bytes)}"
        )
    if request.limit_bytes is not None:
        part = request.limit_bytes // _PART
        if request.limit_bytes - part >= need.leave_bytes:
            return part // pools, f"a quarter of the session's {gib(request.limit_bytes)}"
        rest = max(0, request.limit_bytes - need.leave_bytes)
        return rest // pools, (
            f"the engine needs {gib(need.leave_bytes)} of the session's "
            f"{gib(request.limit_bytes)} besides"
        )
    return max(least, need.most_bytes or 0), "assumed, since the session's limit is not known"


def _notes(need: HostNeed, request: HostRequest, pools: int, size: int) -> tuple[str, ...]:
    """What to know of a size that does."""
    if need.is_shared and not need.contexts and need.most_bytes is None:
        return _part_notes(request, size)
    enough = need.contexts * request.context_bytes + need.enough_chunks * request.chunk_bytes
    if need.is_shared or size >= enough:
        return ()
    return (
        f"{gib(size * pools)} of host memory stage what is stored, and contexts may be stored in "
        f"part; with {-(-enough * pools * _PART // GIB)} GiB of memory for the session they are "
        "stored whole",
    )


def _part_notes(request: HostRequest, size: int) -> tuple[str, ...]:
    """What to know where contexts pass through one memory of all ranks that any size will do for.

    LMCache's server loads as many blocks of a context as there is room for, from its beginning on
    (distributed/storage_controllers/prefetch_controller.py of 0.5.6).
    """
    context = request.ranks * request.context_bytes
    if size >= context:
        return ()
    tokens = request.context_tokens * size // context
    remedy = (
        f"a cpu-tier of {-(-context // GIB)} GiB"
        if request.total_bytes is not None
        else f"{-(-context * _PART // GIB) + -(-request.besides_bytes // GIB)} GiB of memory for "
        "the session"
    )
    return (
        f"{gib(size)} of host memory are less than the longest context ({gib(context)}): of "
        f"contexts above {tokens:,} tokens a part may be computed again; with {remedy} they are "
        "loaded whole",
    )


def divide_host(need: HostNeed, request: HostRequest) -> HostMemory:
    """The host memory that an adapter gets.

    Raises:
        DeclinedError: it is too little, and the adapter insists.
    """
    pools, of_ranks = (1, request.ranks) if need.is_shared else (request.ranks, 1)
    context = of_ranks * request.context_bytes
    wanted = need.contexts * context + need.chunks * of_ranks * request.chunk_bytes
    least = _round_up(max(wanted, 1), need.unit_bytes)
    available, why = _available(need, request, pools, least)
    if available < least:
        needed = max(least * pools * _PART, least * pools + need.leave_bytes)
        needed += request.besides_bytes
        remedy = (
            "raise cpu-tier"
            if request.total_bytes is not None
            else f"start the session with {-(-needed // GIB)} GiB of memory"
        )
        problem = (
            f"transfers between GPU and folder take {gib(least * pools)} of host memory, and there "
            f"are {gib(available * pools)} ({why}); {remedy}"
        )
        if need.insists:
            raise DeclinedError(
                f"{problem} or lower --max-model-len (contexts have up to "
                f"{request.context_tokens} tokens)"
            )
        return HostMemory(least, pools, need.is_cache, why, (problem,))
    if need.most_bytes is not None:
        size, keeps = min(available, max(need.most_bytes, least)), need.is_cache
    else:
        keeps = request.may_keep and (need.is_cache or available >= least + context)
        size = available if keeps else least
    size = size // need.unit_bytes * need.unit_bytes
    return HostMemory(size, pools, keeps, why, _notes(need, request, pools, size))
