"""The queries by which the manager, and so its WebUI, draws a session's figures.

Backend.AI keeps PromQL templates with the placeholders ``{labels}``, ``{window}`` and
``{group_by}`` (ai.backend.common.dto.manager.v2.prometheus_query_preset). Their names are not
unique there, so ours begin in a way that others' do not.
"""

from __future__ import annotations

from collections.abc import Sequence

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


def identity(preset: Preset) -> str | None:
    """What one of ours is known by; None for those of others."""
    return preset.name if preset.name.startswith(PREFIX) else None
