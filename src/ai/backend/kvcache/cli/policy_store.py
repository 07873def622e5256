"""The policy, as the manager keeps it; what somebody else has just written is not written over."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any

import click

from ..errors import PolicyError
from .manager import INSTALL, ask, has_no_plugin
from .types import InputError

type Document = dict[str, Any]

_PATH = "/kvcache/policy"


def read_document(api: Any) -> Document:
    """What is stored, whether it can be used or not; an empty one where nothing is.

    Raises:
        InputError: it is no JSON object.
        click.ClickException: the manager does not have the plugin.
        ai.backend.client.exceptions.BackendError: the manager refuses, or is not reached.
    """
    return _document(_asked(api, "GET"))


def change(api: Any, make: Callable[[Document], Mapping[str, Any]]) -> bool:
    """Writes what is made of the stored document.

    Returns:
        Whether anything had to be written.

    Raises:
        InputError: what was made is no policy; nothing was written.
        click.ClickException: somebody else has written meanwhile; nothing was written. Or as
            ``read_document`` does.
    """
    stored = _asked(api, "GET")
    document = _document(stored)
    try:
        made = make(document)
    except PolicyError as e:
        raise InputError(e) from e
    if made == document:
        return False
    _asked(api, "PUT", {"version": stored["version"], "policy": dict(made)})
    return True


def replace(api: Any, document: Mapping[str, Any]) -> None:
    """Writes a whole policy, whatever is stored, a text that is no policy too.

    Raises:
        InputError, click.ClickException: as ``change`` does.
    """
    version = _asked(api, "GET")["version"]
    _asked(api, "PUT", {"version": version, "policy": dict(document)})


def _document(stored: Mapping[str, Any]) -> Document:
    document: Document = stored["policy"]
    if stored["problem"] and not document:
        raise InputError(PolicyError(stored["problem"]))
    return document


def _asked(api: Any, method: str, body: Mapping[str, Any] | None = None) -> Mapping[str, Any]:
    from ai.backend.client.exceptions import BackendAPIError

    try:
        answer: Mapping[str, Any] = ask(api, method, _PATH, body)
    except BackendAPIError as e:
        if has_no_plugin(e):
            raise click.ClickException(
                f"the manager does not have the plugin, which keeps the policy: {INSTALL}"
            ) from e
        if e.status == HTTPStatus.CONFLICT:
            raise click.ClickException(
                "somebody else has changed the policy meanwhile, and nothing was written; look at "
                "it with `backend.ai kvcache policy show`, then try again"
            ) from e
        if e.status == HTTPStatus.BAD_REQUEST and "msg" in e.data:
            raise InputError(PolicyError(e.data["msg"])) from e
        raise
    return answer
