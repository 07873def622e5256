"""The figures of KV caches among the manager's Prometheus queries."""

from __future__ import annotations

from typing import Any

from ..manager.changes import Kept, Needed, changes
from ..manager.presets import (
    FILTER_LABELS,
    GROUP_LABELS,
    METRIC,
    PREFIX,
    Preset,
    identity,
    wanted_presets,
)
from .preset_store import PresetStore
from .registry import everything


class QueryStore(PresetStore[Preset]):
    """As the manager's own client for these queries tells of them."""

    title = "queries"

    def __init__(self, registry: Any) -> None:
        self._client = registry.prometheus_query_preset

    async def ours(self) -> list[Kept[Preset]]:
        from ai.backend.common.dto.manager.query import StringFilter
        from ai.backend.common.dto.manager.v2.prometheus_query_preset.request import (
            QueryDefinitionFilter,
            SearchQueryDefinitionsInput,
        )

        found = await everything(
            lambda limit, offset: self._client.search(
                SearchQueryDefinitionsInput(
                    filter=QueryDefinitionFilter(name=StringFilter(starts_with=PREFIX)),
                    limit=limit,
                    offset=offset,
                )
            )
        )
        kept = [
            Kept(
                item.id,
                Preset(item.name, item.description or "", item.query_template, item.rank),
            )
            for item in found
        ]
        return sorted(kept, key=lambda one: one.preset.rank)

    async def needed(self) -> Needed[Preset]:
        return Needed(changes(await self.ours(), wanted_presets(), identity))

    async def create(self, preset: Preset) -> None:
        from ai.backend.common.dto.manager.v2.prometheus_query_preset.request import (
            CreateQueryDefinitionInput,
            CreateQueryDefinitionOptionsInput,
        )

        await self._client.create(
            CreateQueryDefinitionInput(
                name=preset.name,
                description=preset.description,
                rank=preset.rank,
                metric_name=METRIC,
                query_template=preset.query_template,
                options=CreateQueryDefinitionOptionsInput(
                    filter_labels=list(FILTER_LABELS), group_labels=list(GROUP_LABELS)
                ),
            )
        )

    async def update(self, kept: Kept[Preset]) -> None:
        from ai.backend.common.dto.manager.v2.prometheus_query_preset.request import (
            ModifyQueryDefinitionInput,
        )

        await self._client.update(
            kept.id,
            ModifyQueryDefinitionInput(
                description=kept.preset.description,
                rank=kept.preset.rank,
                query_template=kept.preset.query_template,
            ),
        )

    async def delete(self, kept: Kept[Preset]) -> None:
        from ai.backend.common.dto.manager.v2.prometheus_query_preset.request import (
            DeleteQueryDefinitionInput,
        )

        await self._client.delete(DeleteQueryDefinitionInput(id=kept.id))

    def named(self, preset: Preset) -> tuple[str, str]:
        return preset.name, preset.description
