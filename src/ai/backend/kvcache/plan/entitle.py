"""Whether a session gets KV cache, and which folder it is to have."""

from __future__ import annotations

import attrs

from ..errors import DeclinedError, PolicyError
from ..policy.place import Place
from ..policy.policy import Policy
from ..policy.request import read_request
from ..policy.settings import Mode, Settings
from .scope import scope_of
from .session import Session


@attrs.frozen
class ToMount:
    """A folder that the agent has to mount first."""

    place: Place
    scope: str
    """The directory in it that is the session's alone to see."""


@attrs.frozen
class Entitlement:
    """What a session is given."""

    settings: Settings
    to_mount: ToMount | None
    """None: it has its folder already."""


def needs_project(session: Session, policy: Policy) -> bool:
    """Whether the session's project makes a difference, and is not known yet."""
    if session.project_id is not None:
        return False
    try:
        wanted = read_request(session.environ).wanted
    except PolicyError:
        # Whatever the project, entitle() says what is wrong.
        return False
    if wanted is not None:
        return wanted
    settings = policy.settings_for(session.resource_group, None)
    return bool(policy.projects) or (settings.mode is Mode.AUTO and session.is_inference)


def _no_folder(session: Session, settings: Settings) -> str:
    own = f"mount one of your own at {settings.mount_point}"
    if session.project_id is None:
        return (
            "the policy names no KV folder for the site or this resource group, and nobody has "
            "told this agent which project the session is of; the manager does where the plugin "
            f"is installed there too, or {own}"
        )
    return (
        "the session's project has no KV folder; an administrator makes one with "
        f"`backend.ai kvcache policy provision {session.project_id}`, or {own}"
    )


def entitle(session: Session, policy: Policy) -> Entitlement | None:
    """Applies the policy, and what the session's user says.

    Returns:
        None for a session that is none of ours.

    Raises:
        DeclinedError: it asks, or would get KV cache by itself, and cannot.
        PolicyError: it asks in words that cannot be used, or for more than it is allowed.
    """
    request = read_request(session.environ)
    if request.wanted is False:
        return None
    settings = policy.settings_for(session.resource_group, session.project_id)
    has_folder = request.folder is not None or any(
        m.container_path == settings.mount_point for m in session.mounts
    )
    if not (has_folder or request.wanted):
        is_given = settings.mode is Mode.AUTO and session.is_inference
        if not is_given:
            return None
    if settings.mode is Mode.OFF:
        raise DeclinedError(
            "the administrator has switched KV cache off for the site, this resource group "
            f"({session.resource_group}) or this project"
        )
    settings = request.narrow(settings)
    if has_folder:
        return Entitlement(settings, None)
    if settings.folder is None:
        raise DeclinedError(_no_folder(session, settings))
    return Entitlement(settings, ToMount(settings.folder, scope_of(session, settings.sharing)))
