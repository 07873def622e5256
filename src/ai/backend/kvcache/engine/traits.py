"""What decides, besides the versions, whether an engine and a way work together."""

from __future__ import annotations

from enum import StrEnum


class Trait(StrEnum):
    """One property of a model, of its host or of how its engine is started.

    The value completes the sentence "the session has ...".
    """

    GPUS = "GPUs"
    LATENT = "latent attention (MLA)"
    INDEXER = "a sparse attention indexer (DSA)"
    UNEQUAL_HEADS = "layers whose heads have different sizes"
    MULTIMODAL = "a model that takes images, audio or video"
    CONTEXT_PARALLEL = "decode context parallelism"
    PROMPT_EMBEDS = "prompt embeddings (--enable-prompt-embeds)"
    LAYOUT_GIVEN = "the memory layout of KV cache set by the user (VLLM_KV_CACHE_LAYOUT)"
    LARGE_BLOCKS = "blocks that may be larger than the attention kernel's own"
    SLEEP_MODE = "sleep mode (--enable-sleep-mode)"


#: What a session has: a set of traits.
type Traits = frozenset[Trait]
