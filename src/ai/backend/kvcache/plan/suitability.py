"""Whether a model's layers go with LMCache, and what that costs."""

from __future__ import annotations

from ..errors import DeclinedError
from ..model.geometry import Geometry


def hybrid_note(geometry: Geometry) -> tuple[str, ...]:
    """What LMCache costs a model with windows, since vLLM then runs without its hybrid manager."""
    if not geometry.has_windows:
        return ()
    return (
        "vLLM turns its hybrid KV cache manager off for LMCache, so layers with a window keep "
        f"every token: {geometry.bytes_per_token_no_hybrid} bytes a token instead of "
        f"{geometry.bytes_per_token}; the budget counts the former",
    )


def refuse_geometry(geometry: Geometry) -> None:
    """Some models have nothing that could be offloaded, or cannot run with LMCache.

    Raises:
        DeclinedError: this is one of them.
    """
    if geometry.bytes_per_token_no_hybrid == 0:
        raise DeclinedError("the model keeps nothing that grows with the context")
    if geometry.has_states:
        raise DeclinedError(
            "the model has recurrent layers; LMCache either turns off the hybrid KV cache manager "
            "that vLLM runs them with, or refuses them, and vLLM would not start. Run it without "
            "KV cache"
        )
