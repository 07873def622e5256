"""What a session has that decides whether versions work together."""

from __future__ import annotations

from ..engine.traits import Trait, Traits
from ..model.geometry import Geometry
from ..sizes import GIB
from .model import Model
from .session import Gpus, Session
from .start import EngineStart

_LAYOUT_VARIABLE = "VLLM_KV_CACHE_LAYOUT"

#: vLLM's names of layouts that LMCache takes (integration/vllm/utils.py,
#: translate_vllm_kv_cache_layout, of LMCache 0.5.6).
_LAYOUTS = frozenset({"NHD", "HND", "LBNHC", "LBHNC", "BLHNC", "BLNHC"})

#: Attention backends that keep latent vectors in the layout HND (vLLM 0.26.0 to 0.33.0,
#: v1/attention/backends/mla, get_required_kv_cache_layout). vLLM chooses them by itself on GPUs of
#: compute capability 10: these, all of which have more memory than all others.
_HEADS_FIRST_BACKENDS = ("FLASHINFER", "TOKENSPEED")
_HEADS_FIRST_GPUS = ("B100", "B200", "B300")
_LARGEST_OTHER_GPU = 150 * GIB

#: The largest page of attention kernels that have pages of a fixed size, in tokens, and the
#: backends that have none.
_KERNEL_PAGE = 64
_ANY_PAGE_BACKENDS = ("FLASH_ATTN", "TRITON_ATTN")

#: Variables of PyTorch's by which GPU memory comes in pieces that no other process can open.
_ALLOCATOR_VARIABLES = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")


def geometry_traits(geometry: Geometry) -> Traits:
    """The traits of a model."""
    found = {
        Trait.LATENT: geometry.is_latent,
        Trait.INDEXER: geometry.has_indexer,
        Trait.REPEATED_LAYERS: geometry.has_repeated_layers,
        Trait.WINDOWS: geometry.has_windows,
        Trait.UNEQUAL_HEADS: geometry.has_unequal_heads,
        Trait.MULTIMODAL: geometry.is_multimodal,
    }
    return frozenset(trait for trait, is_there in found.items() if is_there)


def _is_heads_first(gpus: Gpus | None) -> bool:
    """Whether vLLM chooses such a backend by itself. A share of a GPU has little memory."""
    return gpus is not None and (
        gpus.memory_bytes > _LARGEST_OTHER_GPU
        or any(name in (gpus.model or "") for name in _HEADS_FIRST_GPUS)
    )


def _expands_segments(session: Session) -> bool:
    return any(
        "expandable_segments:true" in session.environ.get(name, "").replace(" ", "").lower()
        for name in _ALLOCATOR_VARIABLES
    )


def traits_of(session: Session, start: EngineStart, model: Model) -> Traits:
    """The traits of a session."""
    told = start.arguments
    backend = (told.attention_backend or "").upper()
    layout = session.environ.get(_LAYOUT_VARIABLE, "").upper()
    found = {
        Trait.GPUS: session.gpus is not None,
        Trait.FRACTION: session.gpus is not None and session.gpus.is_fraction,
        Trait.CONTEXT_PARALLEL: max(told.decode_context_parallel, told.prefill_context_parallel)
        > 1,
        Trait.PROMPT_EMBEDS: told.enable_prompt_embeds,
        Trait.HEADS_FIRST: bool(layout)
        or backend.startswith(_HEADS_FIRST_BACKENDS)
        or (not backend and _is_heads_first(session.gpus)),
        Trait.OTHER_LAYOUT: bool(layout) and layout not in _LAYOUTS,
        Trait.LARGE_BLOCKS: (told.block_size or 0) > _KERNEL_PAGE
        and backend not in _ANY_PAGE_BACKENDS,
        Trait.SLEEP_MODE: told.sleep_mode,
        Trait.UNSHARED_MEMORY: told.sleep_mode
        or told.cumem_allocator
        or _expands_segments(session),
    }
    traits = geometry_traits(model.geometry) | {trait for trait, has in found.items() if has}
    return traits - {Trait.MULTIMODAL} if told.text_only else traits
