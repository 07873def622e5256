"""What decides, besides the versions, whether an engine and a way work together."""

from __future__ import annotations

from enum import Enum


class Trait(Enum):
    """One property of a model, of its host or of how its engine is started.

    The value names it in docs/compatibility.md.
    """

    GPUS = "GPUs"
    """The engine runs on GPUs."""
    FRACTION = "a share of a GPU"
    """The GPU is shared with other sessions by Backend.AI's library."""
    LATENT = "latent attention (MLA)"
    """The model has latent attention (MLA): one compressed vector of a token for all heads."""
    INDEXER = "a sparse attention's indexer (DSA)"
    """Sparse attention keeps keys of its own, by which it chooses tokens (DSA)."""
    REPEATED_LAYERS = "layers that run several times"
    """Layers run several times and keep a cache for each time."""
    WINDOWS = "layers with a window"
    """Some layers look back at the last tokens only."""
    UNEQUAL_HEADS = "layers with unequal heads"
    """Some attention layers have other heads than others."""
    MULTIMODAL = "images, video or sound"
    """The engine takes images, video or sound besides text."""
    CONTEXT_PARALLEL = "context parallelism"
    """Ranks share one context (decode or prefill context parallelism)."""
    PROMPT_EMBEDS = "`--enable-prompt-embeds`"
    """Requests may bring embeddings in the place of tokens."""
    HEADS_FIRST = "the layout HND"
    """The engine may keep latent vectors in the memory layout HND, by a variable, by the attention
    backend, or because its GPUs make it choose such a backend."""
    OTHER_LAYOUT = "another `VLLM_KV_CACHE_LAYOUT` than NHD and HND"
    """The user chose a memory layout that is neither NHD nor HND nor one of their later names."""
    LARGE_BLOCKS = (
        "`--block-size` above 64, without `--attention-backend FLASH_ATTN` or `TRITON_ATTN`"
    )
    """Blocks may be larger than the pages of the attention kernel."""
    SLEEP_MODE = "`--enable-sleep-mode`"
    """The engine can be sent to sleep."""
    UNSHARED_MEMORY = "`--enable-sleep-mode`, `--enable-cumem-allocator` or `expandable_segments`"
    """The engine allocates GPU memory in a way in which no other process can open it."""


#: What a session has.
type Traits = frozenset[Trait]
