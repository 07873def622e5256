"""The manager, asked as the ``backend.ai`` command is configured."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import click

#: What gives a manager the plugin.
INSTALL = "install backend.ai-kvcache[manager] there and restart it"


@contextmanager
def connection() -> Iterator[Any]:
    """A session of Backend.AI's client library.

    Raises:
        click.ClickException: the client is not installed, or the manager refuses or does not answer
            what is asked meanwhile.
    """
    try:
        from ai.backend.client.exceptions import BackendError
        from ai.backend.client.session import Session
    except ImportError as e:
        raise click.ClickException(
            f"this command needs the Backend.AI client ({e}); install backend.ai-client"
        ) from e
    try:
        with Session() as api:
            yield api
    except BackendError as e:
        raise click.ClickException(f"the manager refused, or was not reached: {e}") from e


def ask(api: Any, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
    """What the manager answers at a path of its own.

    Raises:
        ai.backend.client.exceptions.BackendError: it refuses, or is not reached.
    """
    from ai.backend.client.request import Request

    async def fetch() -> Any:
        request = Request(method, path)
        if body is not None:
            request.set_json(body)
        async with request.fetch() as response:
            return await response.json()

    return api.worker_thread.execute(fetch())


def get(api: Any, path: str) -> Any:
    """The same of what is only read."""
    return ask(api, "GET", path)


def has_no_plugin(error: Any) -> bool:
    """Whether the manager knows no path of ours, by what it said to one (a BackendAPIError)."""
    return str(error.data.get("type")).endswith("/url-not-found")
