"""The manager's newer interface (v2), asked as the ``backend.ai`` command is configured."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import click

_PAGE_SIZE = 100


@asynccontextmanager
async def registry() -> AsyncIterator[Any]:
    """Backend.AI's clients for everything that the manager keeps.

    Raises:
        click.ClickException: the client library is not installed.
    """
    try:
        from ai.backend.client.cli.v2.helpers import create_v2_registry, load_v2_config
    except ImportError as e:
        raise click.ClickException(
            f"this command needs the Backend.AI client ({e}); install backend.ai-client"
        ) from e
    clients = await create_v2_registry(load_v2_config())
    try:
        yield clients
    finally:
        await clients.close()


async def everything(page: Callable[[int, int], Awaitable[Any]]) -> list[Any]:
    """All that a search finds, page by page.

    Args:
        page: asks for so many items behind so many others.
    """
    items: list[Any] = []
    while True:
        answer = await page(_PAGE_SIZE, len(items))
        items += answer.items
        if not answer.items or len(items) >= answer.total_count:
            return items
