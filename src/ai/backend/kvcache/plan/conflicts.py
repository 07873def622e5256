"""What a user told the engine that does not go with a KV folder, or changes what it is worth."""

from __future__ import annotations

import shlex

from ..engine.adapter import EngineAdapter
from ..engine.lmcache_inprocess import CONFIG_VARIABLE
from ..errors import DeclinedError
from .session import Session
from .start import EngineStart


def refuse_conflicts(session: Session, start: EngineStart, adapter: EngineAdapter) -> None:
    """Raises where blocks could not be stored, or would mean something else when they come back.

    Raises:
        DeclinedError: the message names what is in the way and what to do.
    """
    told = start.arguments
    if CONFIG_VARIABLE in session.environ:
        raise DeclinedError(
            f"{CONFIG_VARIABLE} is already set, so the user's own LMCache configuration is left "
            "alone; single options may be set as LMCACHE_* variables instead"
        )
    if told.connector:
        raise DeclinedError(
            f"{told.connector} is already given, so the user's own KV configuration is left "
            "alone; remove it to let the plugin configure one"
        )
    if told.lora:
        raise DeclinedError(
            "--enable-lora is on, and LMCache's keys do not name the adapter, so one adapter "
            "would be served another's cache"
        )
    if told.computes_kv_scales:
        raise DeclinedError(
            "--calculate-kv-scales is on: each start computes its own scales, and blocks of an "
            "earlier start would be read with the wrong ones; use a checkpoint with scales"
        )
    if told.block_size is not None and adapter.chunk_tokens % told.block_size:
        raise DeclinedError(
            f"--block-size {told.block_size} does not divide LMCache's chunks of "
            f"{adapter.chunk_tokens} tokens; choose a block size that does"
        )
    if told.data_parallel > 1 and not adapter.data_parallel:
        raise DeclinedError(
            f"--data-parallel-size {told.data_parallel} starts several engines, and each would "
            "start an LMCache server at the same port; start several replicas instead"
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
            f"{shlex.join(start.lost)} from VLLM_* variables does not reach vLLM: the start "
            'command is a shell\'s line without "$@"'
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
