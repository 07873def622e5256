"""One GPU: what its budget is computed from, and where its memory goes."""

from __future__ import annotations

from decimal import Decimal

import attrs
from packaging.version import Version

from ..policy.settings import DEFAULT_CONCURRENT_TRANSFERS
from .overhead import Overhead

#: What vLLM and the buffer take together of a GPU where the user fixed nothing. It was vLLM's own
#: default up to 0.19.
SHARE_WITH_BUFFER = Decimal("0.9")

#: vLLM's own default since then (config/cache.py; 0.9 in 0.19.0, 0.92 in 0.20.0).
_LATER_UTILIZATION = Decimal("0.92")
_FIRST_LATER_UTILIZATION = Version("0.20.0")

#: LMCache transfers in batches of chunks; fewer than this many make every transfer a queue.
MIN_BUFFER_CHUNKS = 64


def default_utilization(vllm: Version) -> Decimal:
    """The share of a GPU that vLLM takes where nobody tells it another."""
    return _LATER_UTILIZATION if vllm >= _FIRST_LATER_UTILIZATION else SHARE_WITH_BUFFER


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
    overhead: Overhead
    context_bytes_without: int | None = None
    """Of the same context where the session runs without KV cache: less where vLLM then frees what
    windows leave behind. None: the same."""
    spared_bytes: int = 0
    """How much of the weights may not lie on the GPU after all."""
    concurrent_transfers: int = DEFAULT_CONCURRENT_TRANSFERS
    utilization: Decimal = SHARE_WITH_BUFFER
    """vLLM's share where the session runs without KV cache."""
    utilization_floor: Decimal = Decimal(0)
    """The buffer may not take so much that the utilization falls below this."""
    pinned: bool = False
    """The share is the user's, and stays as it is."""
    buffer_bytes: int | None = None
    """Fixed by the user; None: the plan chooses."""
    fixed_pool_bytes: int | None = None
    """The pool that the user fixed; vLLM ignores the share then. None: the share decides."""
    fits_length: bool = False
    """Whether vLLM shortens the longest context to what its pool holds."""

    @property
    def least_buffer_bytes(self) -> int:
        """Of the smallest buffer that is of use."""
        return MIN_BUFFER_CHUNKS * self.chunk_bytes


@attrs.frozen
class Budget:
    """Where the memory of one GPU goes, in bytes."""

    memory_bytes: int
    weights_bytes: int
    overhead_bytes: int
    """As it is likely."""
    overhead_low_bytes: int
    overhead_high_bytes: int
    buffer_bytes: int
    pool_bytes_before: int
    pool_bytes_after: int
    utilization_before: Decimal
    utilization: Decimal
    resident_contexts: int
    """How many contexts of the longest length stay in the pool."""
    notes: tuple[str, ...]


def pool_bytes(request: GpuRequest, utilization: Decimal, overhead: int | None = None) -> int:
    """What is left for vLLM's KV pool. Negative where not even the weights fit.

    Args:
        overhead: None: the likely one.
    """
    if request.fixed_pool_bytes is not None:
        return request.fixed_pool_bytes
    taken = request.overhead.likely if overhead is None else overhead
    return int(utilization * request.memory_bytes) - request.weights_bytes - taken
