"""Whose contexts a session shares."""

from __future__ import annotations

from ..errors import DeclinedError
from ..policy.settings import Sharing
from .session import Session


def _id_of(session: Session, sharing: Sharing) -> str:
    """The id of whom the contexts are for.

    Raises:
        DeclinedError: it is not known whose session this is.
    """
    owner = {
        Sharing.SESSION: session.session_id,
        Sharing.USER: session.user_id,
        Sharing.PROJECT: session.project_id,
    }[sharing]
    if owner is None:
        raise DeclinedError(
            f"sharing = {sharing} needs to know the session's {sharing}, and nobody has told this "
            "agent; the manager does where the plugin is installed there too"
        )
    return owner


def owner_of(session: Session, sharing: Sharing) -> str | None:
    """Whom the session's blocks are for, among all that have its folder; None for all of them.

    Raises:
        DeclinedError: it is not known whose session this is.
    """
    return None if sharing is Sharing.PROJECT else _id_of(session, sharing)


def scope_of(session: Session, sharing: Sharing) -> str:
    """The name of the directory that is theirs, in a folder that holds those of several.

    Raises:
        DeclinedError: likewise.
    """
    return f"{sharing}-{_id_of(session, sharing)}"
