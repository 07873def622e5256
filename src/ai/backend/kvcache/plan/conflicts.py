"""What a user told the engine that does not go with a KV folder, or changes what it is worth."""

from __future__ import annotations

from collections.abc import Sequence

from ..engine.adapter import EngineAdapter
from ..engine.command import Program
from ..errors import DeclinedError
from .masks import masked
from .session import Session
from .start import EngineStart

#: The largest block, in tokens, that an attention backend chooses by itself (vLLM,
#: v1/attention/backends/mla/cutlass_mla.py).
_LARGEST_BLOCK = 128


def refuse_conflicts(
    session: Session, start: EngineStart, adapters: Sequence[EngineAdapter]
) -> None:
    """Some sessions cannot have KV cache in any way.

    Args:
        adapters: of all ways that the session may go. Where the user has configured one of them,
            no other is taken.

    Raises:
        DeclinedError: the message names what is in the way and what to do.
    """
    told = start.arguments
    for variable in dict.fromkeys(v for adapter in adapters for v in adapter.own_variables):
        if variable in session.environ:
            raise DeclinedError(
                f"{variable} is already set, so the user's own configuration of KV cache is left "
                "alone; remove it to let the plugin configure one"
            )
    if told.connector:
        raise DeclinedError(
            f"{told.connector} is already given, so the user's own KV configuration is left "
            "alone; remove it to let the plugin configure one"
        )
    if told.other_nodes:
        raise DeclinedError(
            f"{told.other_nodes} makes the engine one of several that run together, and the plugin "
            "sees one session only; run each engine as a service of one node"
        )
    if told.lora:
        raise DeclinedError(
            "adapters (LoRA) are on, and no engine's keys say which weights an adapter has, so one "
            "adapter would be served another's cache"
        )
    if told.computes_kv_scales:
        raise DeclinedError(
            "--calculate-kv-scales is on: each start computes its own scales, and blocks of an "
            "earlier start would be read with the wrong ones; use a checkpoint with scales"
        )


def refuse_way(start: EngineStart, adapter: EngineAdapter) -> None:
    """Some of what a user told the engine does not go with one way, and may go with another.

    Raises:
        DeclinedError: the message names what is in the way and what to do.
    """
    told = start.arguments
    if not told.prefix_caching and adapter.needs_prefix_cache:
        raise DeclinedError(
            "prefix caching is off, and this engine keeps contexts in a folder only behind it; "
            "leave it on"
        )
    name = told.served_model_name or told.model
    if adapter.longest_name and name and len(name.encode()) > adapter.longest_name:
        raise DeclinedError(
            f"the model is called {name[:40]!r}…, with {len(name.encode())} bytes, and file names "
            f"of {adapter.name} have room for {adapter.longest_name}; give a shorter "
            "--served-model-name"
        )
    if told.block_size is not None and adapter.chunk_tokens % told.block_size:
        raise DeclinedError(
            f"a block size of {told.block_size} does not divide the chunks of "
            f"{adapter.chunk_tokens} tokens that {adapter.name} stores; choose one that does"
        )
    # Where vLLM's ranks share a context, a block counts for all of them.
    ranks = told.decode_context_parallel if start.program is not Program.SGLANG else 1
    if ranks > 1 and adapter.chunk_tokens % ((told.block_size or _LARGEST_BLOCK) * ranks):
        blocks = f"{told.block_size}" if told.block_size else f"up to {_LARGEST_BLOCK}"
        raise DeclinedError(
            f"blocks of {blocks} tokens on {ranks} ranks that share one context do not divide the "
            f"chunks of {adapter.chunk_tokens} tokens that {adapter.name} stores; choose a smaller "
            "--block-size"
        )
    if told.data_parallel > 1 and not adapter.data_parallel:
        raise DeclinedError(
            f"a data parallel size of {told.data_parallel} starts several engines, which would be "
            f"in each other's way with {adapter.name}; start several replicas instead"
        )


def conflict_notes(start: EngineStart) -> tuple[str, ...]:
    """What to know of a session that runs all the same."""
    told = start.arguments
    notes: list[str] = []
    if told.ignored_config is not None:
        notes.append(
            f"vLLM ignores {told.ignored_config}; write option and file apart to have it merged"
        )
    if start.lost:
        notes.append(
            f"{masked(start.lost)} from variables does not reach the engine: the start command "
            'is a shell\'s line without "$@"'
        )
    if not told.prefix_caching:
        notes.append(
            "prefix caching is off: what is still in the engine's own memory is loaded from the "
            "folder again"
        )
    if told.speculates:
        notes.append("a draft model runs beside: its memory is not in the budget")
    if told.sleep_mode:
        notes.append("--enable-sleep-mode: a sleeping engine keeps the transfer buffer")
    return tuple(notes)
