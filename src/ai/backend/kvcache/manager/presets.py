"""The queries by which the manager, and so its WebUI, draws a session's figures.

Backend.AI keeps PromQL templates with the placeholders ``{labels}``, ``{window}`` and
``{group_by}`` (ai.backend.common.dto.manager.v2.prometheus_query_preset). Their names are not
unique there, so ours begin in a way that others' do not.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from uuid import UUID

import attrs

from ..metrics.indicators import INDICATORS, Indicator

#: What all of our names begin with.
PREFIX = "KV cache: "

#: What the agents' Prometheus endpoints call every figure of a session.
METRIC = "backendai_container_utilization"

#: The labels that people may choose and group by.
FILTER_LABELS = ("project_id", "user_id", "session_id", "kernel_id")
GROUP_LABELS = FILTER_LABELS

#: Behind the manager's own.
_FIRST_RANK = 1000


@attrs.frozen
class Preset:
    """One query."""

    name: str
    description: str
    query_template: str
    rank: int


@attrs.frozen
class Kept:
    """A preset that the manager has."""

    id: UUID
    preset: Preset


@attrs.frozen
class Changes:
    """What makes what the manager has into what it should have."""

    create: tuple[Preset, ...]
    update: tuple[Kept, ...]
    """With the new content."""
    delete: tuple[Kept, ...]
    same: tuple[Kept, ...]


def _query(indicator: Indicator) -> str:
    # A fixed label and {labels} cannot share a selector.
    figure = f'{METRIC}{{container_metric_name="{indicator.key}",value_type="current"}}'
    return f"avg by ({{group_by}})({METRIC}{{{{{{labels}}}}}} and {figure})"


def wanted_presets(indicators: Sequence[Indicator] = INDICATORS) -> tuple[Preset, ...]:
    """One for each figure."""
    return tuple(
        Preset(
            name=PREFIX + indicator.key.removeprefix("kvcache_").replace("_", " "),
            description=f"{indicator.meaning} ({indicator.unit})",
            query_template=_query(indicator),
            rank=_FIRST_RANK + rank,
        )
        for rank, indicator in enumerate(indicators)
    )


def changes(kept: Iterable[Kept], wanted: Iterable[Preset]) -> Changes:
    """How to get from what is kept to what is wanted; presets of others do not matter."""
    missing = {preset.name: preset for preset in wanted}
    update: list[Kept] = []
    delete: list[Kept] = []
    same: list[Kept] = []
    for one in kept:
        if not one.preset.name.startswith(PREFIX):
            continue
        preset = missing.pop(one.preset.name, None)
        if preset is None:
            # Of another version, or there twice.
            delete.append(one)
        elif preset == one.preset:
            same.append(one)
        else:
            update.append(Kept(one.id, preset))
    return Changes(tuple(missing.values()), tuple(update), tuple(delete), tuple(same))
