"""The policy through the manager's own interface for etcd, which needs no plugin there.

It has no compare-and-swap. The value is read again just before it is written, so that nobody loses
the change of somebody else unless both are written within the same milliseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import click

from ..errors import PolicyError
from ..policy.policy import ETCD_KEY, check_policy, policy_text, read_policy
from .types import InputError

type Document = dict[str, Any]


def read_text(api: Any) -> str | None:
    """What is stored. None: nothing.

    Raises:
        ai.backend.client.exceptions.BackendError: the manager refuses, or is not reached.
    """
    text: str | None = api.EtcdConfig.get(ETCD_KEY)
    return text


def read_document(api: Any) -> Document:
    """What is stored, unchecked; an empty one where nothing is.

    Raises:
        InputError: it is no JSON object.
    """
    return _parsed(read_text(api))


def change(api: Any, make: Callable[[Document], Mapping[str, Any]]) -> bool:
    """Writes what is made of the stored document.

    Returns:
        Whether anything had to be written.

    Raises:
        InputError: what was made is no policy; nothing was written.
        click.ClickException: somebody else has written meanwhile; nothing was written.
    """
    before = read_text(api)
    document = _parsed(before)
    try:
        made = make(document)
    except PolicyError as e:
        raise InputError(e) from e
    if made == document:
        return False
    _write(api, before, made)
    return True


def replace(api: Any, document: Mapping[str, Any]) -> None:
    """Writes a whole policy, whatever is stored, a text that is no policy too.

    Raises:
        InputError, click.ClickException: as ``change`` does.
    """
    _write(api, read_text(api), document)


def _write(api: Any, before: str | None, document: Mapping[str, Any]) -> None:
    try:
        check_policy(document)
        text = policy_text(document)
    except PolicyError as e:
        raise InputError(e) from e
    if read_text(api) != before:
        raise click.ClickException(
            "somebody else has changed the policy meanwhile, and nothing was written; look at it "
            "with `backend.ai kvcache policy show`, then try again"
        )
    api.EtcdConfig.set(ETCD_KEY, text)


def _parsed(text: str | None) -> Document:
    try:
        return read_policy(text)
    except PolicyError as e:
        raise InputError(e) from e
