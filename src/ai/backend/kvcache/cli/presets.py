"""``presets``: the figures of KV caches among the manager's Prometheus queries."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import click

from ..manager.presets import (
    FILTER_LABELS,
    GROUP_LABELS,
    METRIC,
    PREFIX,
    Kept,
    Preset,
    changes,
    wanted_presets,
)
from .table import table

_PAGE_SIZE = 100


@asynccontextmanager
async def _manager() -> AsyncIterator[Any]:
    """The manager's own client for these queries, as the ``backend.ai`` command is configured.

    Raises:
        click.ClickException: the client is not installed.
    """
    try:
        from ai.backend.client.cli.v2.helpers import create_v2_registry, load_v2_config
    except ImportError as e:
        raise click.ClickException(
            f"this command needs the Backend.AI client ({e}); install backend.ai-client"
        ) from e
    registry = await create_v2_registry(load_v2_config())
    try:
        yield registry.prometheus_query_preset
    finally:
        await registry.close()


async def _kept(client: Any) -> list[Kept]:
    """All presets of ours that the manager has."""
    from ai.backend.common.dto.manager.query import StringFilter
    from ai.backend.common.dto.manager.v2.prometheus_query_preset.request import (
        QueryDefinitionFilter,
        SearchQueryDefinitionsInput,
    )

    kept: list[Kept] = []
    while True:
        page = await client.search(
            SearchQueryDefinitionsInput(
                filter=QueryDefinitionFilter(name=StringFilter(starts_with=PREFIX)),
                limit=_PAGE_SIZE,
                offset=len(kept),
            )
        )
        kept += (
            Kept(
                item.id,
                Preset(item.name, item.description or "", item.query_template, item.rank),
            )
            for item in page.items
        )
        if not page.items or len(kept) >= page.total_count:
            return kept


async def _create(client: Any, preset: Preset) -> None:
    from ai.backend.common.dto.manager.v2.prometheus_query_preset.request import (
        CreateQueryDefinitionInput,
        CreateQueryDefinitionOptionsInput,
    )

    await client.create(
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


async def _update(client: Any, kept: Kept) -> None:
    from ai.backend.common.dto.manager.v2.prometheus_query_preset.request import (
        ModifyQueryDefinitionInput,
    )

    await client.update(
        kept.id,
        ModifyQueryDefinitionInput(
            description=kept.preset.description,
            rank=kept.preset.rank,
            query_template=kept.preset.query_template,
        ),
    )


async def _delete(client: Any, kept: Kept) -> None:
    from ai.backend.common.dto.manager.v2.prometheus_query_preset.request import (
        DeleteQueryDefinitionInput,
    )

    await client.delete(DeleteQueryDefinitionInput(id=kept.id))


async def _install() -> str:
    async with _manager() as client:
        needed = changes(await _kept(client), wanted_presets())
        for preset in needed.create:
            await _create(client, preset)
        for kept in needed.update:
            await _update(client, kept)
        for kept in needed.delete:
            await _delete(client, kept)
    return (
        f"{len(needed.create)} created, {len(needed.update)} changed, "
        f"{len(needed.delete)} removed, {len(needed.same)} left as they are"
    )


async def _remove() -> str:
    async with _manager() as client:
        kept = await _kept(client)
        for one in kept:
            await _delete(client, one)
    return f"{len(kept)} removed"


async def _list() -> str:
    async with _manager() as client:
        kept = sorted(await _kept(client), key=lambda one: one.preset.rank)
    if not kept:
        return "The manager has none; `backend.ai kvcache presets install` gives it some."
    return table([(k.preset.name, k.preset.description) for k in kept], text=(0, 1))


def _run(action: Callable[[], Awaitable[str]]) -> None:
    async def run() -> str:
        return await action()

    try:
        click.echo(asyncio.run(run()))
    except click.ClickException:
        raise
    except Exception as e:
        # What the manager's client raises has no common base, and says what the manager said.
        raise click.ClickException(f"the manager refused, or was not reached: {e}") from e


@click.group()
def presets() -> None:
    """Figures of KV caches among the manager's Prometheus queries, for its WebUI to draw."""


@presets.command()
def install() -> None:
    """Registers them. What is there already is brought up to date; twice does no harm."""
    _run(_install)


@presets.command("list")
def list_presets() -> None:
    """Shows those that the manager has."""
    _run(_list)


@presets.command()
def remove() -> None:
    """Takes them away again, and nothing else."""
    _run(_remove)
