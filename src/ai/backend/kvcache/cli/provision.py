"""A KV folder for each project, which nobody but agents reaches, made through the manager."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import quote

import attrs
import click

from ..policy.place import Place, is_provisioned
from ..policy.policy import Policy
from .manager import INSTALL, ask, has_no_plugin
from .names import Project

_PATH = "/kvcache/folders"


@attrs.frozen
class Outcome:
    """What was found or done for one project."""

    project: Project
    text: str
    place: str | None
    """What the policy is to name. None: it was refused."""


@attrs.frozen
class Needed:
    """What a project is to get."""

    project: Project
    host: str | None
    """Where its folder is, or is to be made. None: the manager's default."""
    has: Place | None = None
    """The provisioned folder that the policy names already."""
    instead_of: str | None = None
    """The folder that the policy names now and others may reach, for people."""

    @property
    def text(self) -> str:
        """What would be done."""
        if self.has is not None:
            return f"has its folder on {self.has.host}"
        where = self.host or "the default storage host"
        if self.instead_of is None:
            return f"would make its folder on {where}"
        return (
            f"would make its folder on {where} in the place of {self.instead_of}, which others "
            "than agents may reach"
        )


def read_vfolders(api: Any) -> dict[str, Mapping[str, Any]]:
    """Place → VFolder, of those that the manager shows to the caller.

    Raises:
        ai.backend.client.exceptions.BackendError: the manager refuses, or is not reached.
    """
    return {
        f"{item['host']}/{item['quota_scope_id']}/{item['id'].replace('-', '')}": item
        for item in api.VFolder.list()
    }


def look(
    project: Project, policy: Policy, vfolders: Mapping[str, Mapping[str, Any]], host: str | None
) -> Needed:
    """What has to be done for a project.

    Args:
        vfolders: those that the manager shows, by place.
        host: where a new folder is made. None: as the policy says.
    """
    settings = policy.settings_for(None, project.id)
    named: Place | None = policy.projects.get(project.id, {}).get("folder")
    if named is not None and is_provisioned(named, project.id):
        return Needed(project, str(named.host), has=named)
    wanted = host or (str(settings.storage_host) if settings.storage_host else None)
    if named is None:
        return Needed(project, wanted)
    known = vfolders.get(str(named))
    called = f"the VFolder {known['name']} ({named})" if known else f"the folder {named}"
    return Needed(project, wanted or str(named.host), instead_of=called)


def refuse_move(needed: Needed) -> Outcome:
    """For a project that would lose sight of its cache, which nobody has agreed to yet."""
    return Outcome(
        needed.project,
        f"refused: its folder is {needed.instead_of}, which others than agents may reach and "
        "change. Run this with --yes to give it a folder that nobody reaches. That folder starts "
        "empty, so sessions that start afterwards compute their contexts again; sessions that run "
        "keep the old one",
        None,
    )


def make(api: Any, needed: Needed) -> Outcome:
    """Makes a project's folder, or finds that it is there.

    Raises:
        ai.backend.client.exceptions.BackendClientError: the manager is not reached.
    """
    from ai.backend.client.exceptions import BackendAPIError

    try:
        answer = ask(api, "POST", _PATH, {"project": needed.project.id, "host": needed.host})
    except BackendAPIError as e:
        return Outcome(needed.project, f"refused by the manager: {_reason(e)}", None)
    return Outcome(needed.project, _done(needed, answer), str(answer["place"]))


def _done(needed: Needed, answer: Mapping[str, Any]) -> str:
    where = answer["place"].partition("/")[0]
    if needed.has is not None:
        if answer["made"]:
            return f"made its folder on {where} anew, since it was gone"
        return f"has its folder on {where}"
    done = f"made its folder on {where}" if answer["made"] else f"has its folder on {where}"
    if needed.instead_of is None:
        return done
    return (
        f"{done} in the place of {needed.instead_of}. The old one stays as it is, with what lies "
        "in it, for the sessions that run with it; delete it when none does any more"
    )


def _reason(error: Any) -> str:
    if has_no_plugin(error):
        return f"it does not have the plugin, which makes the folders: {INSTALL}"
    return str(error.data.get("msg") or error.data.get("title") or error.reason)


def places(outcomes: Iterable[Outcome]) -> dict[str, str]:
    """Project's id → its folder's place, as the policy says it."""
    return {o.project.id: o.place for o in outcomes if o.place is not None}


def remove(api: Any, called: str, project: str, place: Place) -> str:
    """Removes a project's provisioned folder; returns what was done.

    Args:
        called: how the user names the project, which may be gone.
        project: its id.

    Raises:
        click.ClickException: the manager refuses.
        ai.backend.client.exceptions.BackendClientError: the manager is not reached.
    """
    from ai.backend.client.exceptions import BackendAPIError

    try:
        answer = ask(api, "DELETE", f"{_PATH}/{quote(str(place.host), safe=':')}/{project}")
    except BackendAPIError as e:
        raise click.ClickException(
            f"the folder is not removed: {_reason(e)}; then remove it with `backend.ai kvcache "
            f"policy unprovision {called} --storage-host {place.host}`"
        ) from e
    if answer["gone"]:
        return f"its folder on {place.host} is removed"
    return f"the storage proxy of {place.host} goes on removing its folder"
