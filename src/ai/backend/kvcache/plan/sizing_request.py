"""What a person can say about the sessions that are planned from figures alone."""

from __future__ import annotations

from decimal import Decimal

import attrs

from ..engine.lmcache import CHUNK_TOKENS
from ..engine.versions import NEWEST, Versions
from ..model.parallel import Parallel
from ..model.source import ModelSource
from ..policy.settings import DEFAULT_CONCURRENT_TRANSFERS
from ..sizes import GIB

#: Assumed where nobody says how much memory a GPU has.
ASSUMED_MEMORY_BYTES = 80 * GIB


@attrs.frozen
class SizingRequest:
    """Everything that a person can say about the sessions."""

    model: ModelSource
    parallel: Parallel = attrs.field(factory=Parallel)
    gpus: int | None = None
    """How many there are. None: as many as are needed."""
    is_fraction: bool = False
    """Whether it is a share of a GPU that others use too."""
    memory_bytes: int | None = None
    """Of one GPU, or of the share of one. None: assumed."""
    utilization: Decimal | None = None
    """vLLM's share of a GPU without KV cache. None: its own default."""
    pinned: bool = False
    max_model_len: int | None = None
    """None: the model's own."""
    kv_cache_dtype: str = "auto"
    weights_bytes: int | None = None
    """Of the whole model. None: looked up or estimated."""
    overhead_bytes: int | None = None
    """Of one GPU, as somebody has measured it. None: estimated."""
    concurrent_transfers: int = DEFAULT_CONCURRENT_TRANSFERS
    context_tokens: int | None = None
    """The length of the contexts that are counted in the pool. None: max_model_len."""
    chunk_tokens: int = CHUNK_TOKENS
    lmcache_version: str = NEWEST["lmcache"]
    vllm_version: str = NEWEST["vllm"]

    @property
    def versions(self) -> Versions:
        return Versions({"vllm": self.vllm_version, "lmcache": self.lmcache_version})
