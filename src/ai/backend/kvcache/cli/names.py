"""Projects and resource groups by the names that people call them."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import attrs
import click

from ..policy.edit import Level
from ..policy.policy import PROJECTS, RESOURCE_GROUPS

_QUERY = """
query {
  groups(type: ["GENERAL", "MODEL_STORE"]) { id name domain_name is_active type }
  scaling_groups { name }
}
"""


@attrs.frozen
class Project:
    """One of the manager's."""

    id: str
    name: str
    domain: str
    is_active: bool
    is_general: bool
    """No model store."""


@attrs.frozen
class Names:
    """What the manager knows."""

    projects: Sequence[Project]
    resource_groups: Collection[str]

    def project(self, text: str) -> Project:
        """The project with this id or name.

        Raises:
            click.UsageError: there is none, or several have the name.
        """
        found = [p for p in self.projects if p.id == text.lower()]
        found = found or [p for p in self.projects if p.name == text]
        if not found:
            raise click.UsageError(_unknown(text, "project", (p.name for p in self.projects)))
        if len(found) > 1:
            ids = ", ".join(f"{p.id} (domain {p.domain})" for p in found)
            raise click.UsageError(f"several projects are called {text!r}; say which by id: {ids}")
        return found[0]

    def resource_group(self, text: str) -> str:
        """The resource group of this name.

        Raises:
            click.UsageError: there is none.
        """
        if text not in self.resource_groups:
            raise click.UsageError(_unknown(text, "resource group", self.resource_groups))
        return text

    def called(self, level: Level) -> str:
        """A level of the policy, for people."""
        if level.kind != PROJECTS:
            return str(level)
        name = next((p.name for p in self.projects if p.id == level.name), None)
        return f"{level}, which is gone" if name is None else f"project {name}"

    def level(
        self, project: str | None, resource_group: str | None, gone: Collection[Level] = ()
    ) -> Level:
        """The level that options name: the site without any.

        Args:
            gone: levels that may be named though the manager does not know them, projects by id.

        Raises:
            click.UsageError: both are given, or what is named is not there.
        """
        if project is not None and resource_group is not None:
            raise click.UsageError("a setting is said for a project or a resource group, not both")
        if project is not None:
            level = Level(PROJECTS, project)
            return level if level in gone else Level(PROJECTS, self.project(project).id)
        if resource_group is not None:
            level = Level(RESOURCE_GROUPS, resource_group)
            return level if level in gone else Level(level.kind, self.resource_group(level.name))
        return Level()


def read_names(api: Any) -> Names:
    """Asks the manager.

    Raises:
        ai.backend.client.exceptions.BackendError: it refuses, or is not reached.
    """
    answer = api.Admin.query(_QUERY)
    return Names(
        projects=[
            Project(
                id=str(group["id"]),
                name=group["name"],
                domain=group["domain_name"],
                is_active=group["is_active"],
                is_general=group["type"] == "GENERAL",
            )
            for group in answer["groups"]
        ],
        resource_groups=[group["name"] for group in answer["scaling_groups"]],
    )


def _unknown(text: str, what: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(text, list(known))
    return f"{text!r} is no {what}" + (f"; did you mean {' or '.join(near)}?" if near else "")
