"""``presets``: what the manager is to know of KV caches, so that its WebUI shows it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import click

from .launcher_store import LauncherStore
from .preset_store import PresetStore
from .query_store import QueryStore
from .registry import registry
from .table import table

type Stores = tuple[PresetStore[Any], ...]


async def _install(stores: Stores) -> str:
    return "\n".join([await store.install() for store in stores])


async def _remove(stores: Stores) -> str:
    return "\n".join([await store.remove() for store in stores])


async def _list(stores: Stores) -> str:
    rows = [row for store in stores for row in await store.rows()]
    if not rows:
        return "The manager has none; `backend.ai kvcache presets install` gives it some."
    return table(rows, text=(0, 1, 2))


def _run(action: Callable[[Stores], Awaitable[str]]) -> None:
    async def run() -> str:
        async with registry() as clients:
            return await action((QueryStore(clients), LauncherStore(clients)))

    try:
        click.echo(asyncio.run(run()))
    except click.ClickException:
        raise
    except Exception as e:
        # What the manager's client raises has no common base, and says what the manager said.
        raise click.ClickException(f"the manager refused, or was not reached: {e}") from e


@click.group()
def presets() -> None:
    """What the WebUI draws of KV caches, and the controls for them in its launcher."""


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
