"""A plan as a person reads it."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from pathlib import PurePosixPath
from typing import Any

import yaml

from ..plan.sizing import Sizing
from ..plan.tell import FILES_DIRECTORY
from ..sizes import GIB, gib
from .session_plan import SessionPlan, printable
from .table import table

#: Columns of the drawn bar of one GPU's memory.
_BAR = 64

_NONE = "-"


def _size(count: int) -> str:
    return gib(count) if count >= GIB // 100 else f"{count:,} B"


def _cache_rows(sizing: Sizing) -> list[list[str]]:
    geometry, share = sizing.geometry, sizing.share
    rows = [["KV cache", "layers", "bytes/token", "window", "constant"]]
    for group in geometry.groups:
        window = group.cache.window
        rows.append([
            f"  {group.cache.kind}",
            str(group.count),
            f"{group.bytes_per_token:,}",
            f"{window:,}" if window else _NONE,
            _size(group.constant_bytes) if group.constant_bytes else _NONE,
        ])
    parallel = share.parallel
    parts = [
        f"{name} {size}"
        for name, size in (
            ("TP", parallel.tensor),
            ("PP", parallel.pipeline),
            ("DCP", parallel.decode_context),
        )
        if size > 1
    ]
    on_gpu = f"  one token on one GPU{f' ({", ".join(parts)})' if parts else ''}"
    rows.append(["  one token, whole model", "", f"{geometry.bytes_per_token:,}", "", ""])
    rows.append([on_gpu, "", f"{share.bytes_per_token:,}", "", ""])
    if geometry.has_windows:
        full = geometry.bytes_per_token_no_hybrid
        rows.append(["  the same without windows", "", f"{full:,}", "", ""])
        on_gpu_full = share.bytes_per_token_no_hybrid
        rows.append(["  … on one GPU", "", f"{on_gpu_full:,}", "", ""])
    return rows


def _memory_rows(sizing: Sizing) -> list[list[str]]:
    gpu, budget = sizing.gpu, sizing.budget
    pool = sizing.pool_bytes_before
    buffer = budget.buffer_bytes if budget else 0
    beside = sizing.beside_bytes

    def rest(pool_bytes: int, buffer_bytes: int) -> str:
        used = gpu.weights_bytes + gpu.overhead.likely + pool_bytes + buffer_bytes
        return _size(gpu.memory_bytes - used) if used <= gpu.memory_bytes else _NONE

    def with_cache(text: str) -> list[str]:
        return [text] if budget else []

    rows = [
        [f"One GPU, {gib(gpu.memory_bytes)}", "without", *with_cache("with KV cache")],
        ["  weights", _size(gpu.weights_bytes), *with_cache(_size(gpu.weights_bytes))],
        ["  overhead", _size(gpu.overhead.likely), *with_cache(_size(gpu.overhead.likely))],
        ["  KV pool", _size(pool), *with_cache(_size(sizing.pool_bytes_after))],
        ["  transfer buffer", _NONE, *with_cache(_size(buffer) if buffer else _NONE)],
        *([["  LMCache's server", _NONE, _size(beside)]] if beside else []),
        [
            "  left free",
            rest(pool, 0),
            *with_cache(rest(sizing.pool_bytes_after, buffer + beside)),
        ],
        [
            "  gpu_memory_utilization",
            str(gpu.utilization),
            *with_cache(str(budget.utilization) if budget else ""),
        ],
    ]
    context = f"  contexts of {sizing.context_tokens:,} tokens"
    if budget:
        rows.append([context, str(sizing.resident_without), str(sizing.resident_contexts)])
    else:
        rows.append([context, str(sizing.resident_contexts)])
    return rows


def _bar(sizing: Sizing) -> str:
    """One GPU's memory, drawn to scale."""
    gpu, budget = sizing.gpu, sizing.budget
    parts = [
        ("weights", "█", gpu.weights_bytes),
        ("overhead", "▓", gpu.overhead.likely),
        ("KV pool", "▒", sizing.pool_bytes_after),
        ("buffer", "░", budget.buffer_bytes if budget else 0),
        ("LMCache's server", "▞", sizing.beside_bytes),
    ]
    drawn, end, used = "", 0, 0
    for _, mark, size in parts:
        used += size
        position = min(_BAR, round(_BAR * used / gpu.memory_bytes))
        drawn += mark * (position - end)
        end = max(end, position)
    legend = "   ".join(f"{mark} {name}" for name, mark, size in parts if size)
    return f"  [{drawn.ljust(_BAR, '·')}]\n   {legend}   · free"


def settings_hint(sizing: Sizing) -> str:
    """Where the settings are that belong to a plan which says yes."""
    if sizing.environment:
        return "--format env and --format yaml print the settings"
    way = "the way" if sizing.adapter is None else sizing.adapter.name
    return f"{way} is told by files; a start command behind -- shows them"


def sizing_text(sizing: Sizing) -> str:
    """One model's plan."""
    geometry, model = sizing.geometry, sizing.request.model
    head = [
        f"{model.name}: {geometry.model_type}, {len(geometry.layers)} layers, "
        f"{geometry.dtype} cache, up to {sizing.max_model_len:,} tokens",
        f"  from {model.origin}",
        f"  weights {_size(sizing.weights.total_bytes)}, {sizing.weights.source}",
    ]
    verdict = "KV cache: yes" if sizing.budget else f"KV cache: no, because {sizing.reasons[0]}"
    overhead = sizing.gpu.overhead
    uncertain = (
        [
            f"  the overhead is an estimate, {_size(overhead.low)} to {_size(overhead.high)}; "
            "vLLM measures it when it starts"
        ]
        if overhead.low != overhead.high
        else []
    )
    notes = [
        f"  {note}" for note in (*geometry.warnings, *sizing.reasons[0 if sizing.budget else 1 :])
    ]
    taken = [f"  way: {sizing.adapter.name}"] if sizing.adapter else []
    refused = [f"  not {name}: {why}" for name, why in sizing.refused.items()]
    hint = [f"  {settings_hint(sizing)}"] if sizing.budget else []
    return "\n\n".join((
        "\n".join(head),
        table(_cache_rows(sizing)),
        f"{table(_memory_rows(sizing))}\n{_bar(sizing)}",
        "\n".join((verdict, *taken, *refused, *uncertain, *notes, *hint)),
    ))


def _section(title: str, lines: Iterable[str]) -> str:
    body = "\n".join(f"  {line}" for text in lines for line in text.rstrip().splitlines())
    return f"{title}:\n{body}" if body else ""


def _told(trial: Mapping[str, Any]) -> list[str]:
    """What the session's engine is told, and its container given."""
    command, shared_memory = trial["start_command"], trial["shared_memory_bytes"]
    settings = {n: text for n, text in trial["files"].items() if PurePosixPath(n).suffix == ".yaml"}
    links = [f"{name} -> {target}" for name, target in trial["links"].items()]
    others = [name for name in trial["files"] if name not in settings]
    return [
        _section("start command", [shlex.join(command)]),
        _section("environment", [f"{k}={v}" for k, v in trial["environment"].items()]),
        *(
            _section(str(FILES_DIRECTORY / name), [text])
            for name, text in settings.items()
            if yaml.safe_load(text)
        ),
        _section(f"besides in {FILES_DIRECTORY}", [*others, *links]),
        f"/dev/shm: {gib(shared_memory)}" if shared_memory else "",
    ]


def trial_text(trial: Mapping[str, Any]) -> str:
    """The plan of a session with a start command.

    Args:
        trial: as programs get it.
    """
    planned, reason = trial["kv_cache"], trial["reason"]
    # The plan of a session with KV cache tells them by itself, and so do most reasons.
    others = {} if planned else {n: why for n, why in trial["refused"].items() if why not in reason}
    parts = [
        f"KV cache: {f'yes, {trial["way"]}' if planned else f'no, because {reason}'}",
        SessionPlan(trial["plan"]).text() if planned else "",
        *(_told(trial) if planned else ()),
        _section("not taken", [f"{way}: {why}" for way, why in others.items()]),
        _section("assumed", trial["notes"]),
    ]
    text = "\n\n".join(filter(None, parts))
    # A model's files may be somebody else's, and their words are in it.
    return "\n".join(map(printable, text.split("\n")))
