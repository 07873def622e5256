"""A KV folder for each project, made through the manager and named in the policy."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from uuid import UUID

import attrs

from ..policy.place import parse_place
from ..policy.policy import Policy
from .names import Project

#: Of folders that are gone, or going; their names are free again.
_GONE = frozenset({"delete-ongoing", "delete-complete", "delete-error"})
_IN_THE_TRASH = "delete-pending"

#: Members of the project look into it at most. What a session keeps is written through the agent,
#: and nobody puts something else in its place.
_PERMISSION = "ro"

_USAGE_MODES = frozenset({"general", "data"})


@attrs.frozen
class Folder:
    """One of the manager's, of a project."""

    name: str
    host: str
    place: str
    """As a policy writes it."""
    project: str
    """Its id."""
    usage_mode: str
    status: str

    @property
    def defect(self) -> str | None:
        """Why it cannot be a KV folder. None: it can."""
        try:
            parse_place(self.place)
        except ValueError:
            return f"{self.name} lies where no folder of a storage proxy does ({self.place})"
        if self.usage_mode not in _USAGE_MODES:
            return (
                f"{self.name} is a folder of usage mode {self.usage_mode}, and a KV folder is a "
                "general or data one; rename it, or choose another folder-name"
            )
        if self.status == _IN_THE_TRASH:
            return (
                f"{self.name} is in the trash; restore it, or delete it for good and run this again"
            )
        return None


@attrs.frozen
class Outcome:
    """What was found or done for one project."""

    project: Project
    text: str
    place: str | None
    """What the policy is to name. None: it was refused."""


@attrs.frozen
class ToMake:
    """A folder that is not there yet."""

    project: Project
    name: str
    host: str | None
    """None: the manager's default."""

    @property
    def text(self) -> str:
        return f"{self.name} on {self.host or 'the default storage host'}"


def read_folders(api: Any) -> list[Folder]:
    """All folders of projects that the manager shows to the caller: to a superadmin, all.

    Raises:
        ai.backend.client.exceptions.BackendError: it refuses, or is not reached.
    """
    return [
        _folder(item)
        for item in api.VFolder.list()
        if item["ownership_type"] == "group" and item["status"] not in _GONE
    ]


def _folder(item: Mapping[str, Any]) -> Folder:
    return Folder(
        name=item["name"],
        host=item["host"],
        place=f"{item['host']}/{item['quota_scope_id']}/{UUID(item['id']).hex}",
        project=item["group"],
        usage_mode=item["usage_mode"],
        status=item["status"],
    )


def folder_name(prefix: str, project: str) -> str:
    """What a project's folder is called.

    The manager refuses a name that any folder has which the caller may see, and superadmins see
    all of them. So the name says which project it is for, by the beginning of its id.
    """
    return f"{prefix}-{project[:8]}"


def look(
    project: Project, policy: Policy, folders: Iterable[Folder], host: str | None
) -> Outcome | ToMake:
    """What has to be done for a project.

    Args:
        folders: all that there are.
        host: where a new one is made. None: as the policy says.
    """
    own = [folder for folder in folders if folder.project == project.id]
    settings = policy.settings_for(None, project.id)
    named = policy.projects.get(project.id, {}).get("folder")
    name = folder_name(settings.folder_name, project.id)
    found = next((f for f in own if f.place == str(named)), None)
    # One in the trash may have the same name.
    by_name = sorted((f for f in own if f.name == name), key=lambda f: f.status == _IN_THE_TRASH)
    found = found or next(iter(by_name), None)
    if found is None:
        wanted = host or (str(settings.storage_host) if settings.storage_host else None)
        return ToMake(project, name, wanted)
    if found.defect is not None:
        return Outcome(project, f"refused: {found.defect}", None)
    return Outcome(project, f"has {found.name} on {found.host}", found.place)


def make(api: Any, wanted: ToMake) -> Outcome:
    """Makes a folder on behalf of its project.

    Raises:
        ai.backend.client.exceptions.BackendClientError: the manager is not reached.
    """
    from ai.backend.client.exceptions import BackendAPIError

    project = wanted.project
    try:
        item = api.VFolder.create(
            wanted.name,
            host=wanted.host,
            group=project.id,
            usage_mode="general",
            permission=_PERMISSION,
        )
    except BackendAPIError as e:
        return Outcome(project, f"refused by the manager: {_reason(e, project)}", None)
    folder = _folder(item)
    return Outcome(project, f"made {folder.name} on {folder.host}", folder.place)


def _reason(error: Any, project: Project) -> str:
    said = error.data.get("msg") or error.data.get("title") or error.reason
    if error.status == 404:
        return (
            f"{said} It makes folders for projects of the caller's own domain alone, and this one "
            f"is of {project.domain!r}"
        )
    return str(said)


def places(outcomes: Sequence[Outcome]) -> dict[str, str]:
    """Project's id → its folder's place, as the policy says it."""
    return {o.project.id: o.place for o in outcomes if o.place is not None}
