"""What decides, besides the versions, whether an engine and a way work together."""

from __future__ import annotations

from enum import Enum, auto


class Trait(Enum):
    """One property of a model, of its host or of how its engine is started."""

    GPUS = auto()
    """The engine runs on GPUs."""
    LATENT = auto()
    """The model has latent attention (MLA): one compressed vector of a token for all heads."""
    INDEXER = auto()
    """Sparse attention keeps keys of its own, by which it chooses tokens (DSA)."""
    WINDOWS = auto()
    """Some layers look back at the last tokens only."""
    UNEQUAL_HEADS = auto()
    """Some attention layers have other heads than others."""
    MULTIMODAL = auto()
    """The engine takes images, video or sound besides text."""
    CONTEXT_PARALLEL = auto()
    """Ranks share one context (decode or prefill context parallelism)."""
    PROMPT_EMBEDS = auto()
    """Requests may bring embeddings in the place of tokens."""
    HEADS_FIRST = auto()
    """The engine may keep latent vectors in the memory layout HND, by a variable, by the attention
    backend, or because its GPUs make it choose such a backend."""
    OTHER_LAYOUT = auto()
    """The user chose a memory layout that is neither NHD nor HND nor one of their later names."""
    LARGE_BLOCKS = auto()
    """Blocks may be larger than the pages of the attention kernel."""
    SLEEP_MODE = auto()
    """The engine can be sent to sleep."""
    UNSHARED_MEMORY = auto()
    """The engine allocates GPU memory in a way in which no other process can open it."""


#: What a session has.
type Traits = frozenset[Trait]
