"""A policy's document, changed at one of its levels."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any

import attrs

from ..errors import PolicyError
from .merge_patch import merge
from .policy import PROJECTS, RESOURCE_GROUPS, levels_of_kind
from .settings import SETTINGS

type Document = Mapping[str, Any]

#: What people call the kinds of levels below the site.
_KINDS: Mapping[str, str] = {RESOURCE_GROUPS: "resource group", PROJECTS: "project"}


@attrs.frozen
class Level:
    """Where a setting is said: for the site, a resource group or a project."""

    kind: str | None = None
    """One of the document's names for levels. None: the site."""
    name: str = ""
    """A resource group's name, a project's id."""

    def __str__(self) -> str:
        return f"{_KINDS[self.kind]} {self.name}" if self.kind else "the site"

    def said_in(self, document: Document) -> Document:
        """Name of a setting → value, as it is written there.

        Raises:
            PolicyError: the document has something else in the place of levels.
        """
        if self.kind is None:
            return {k: v for k, v in document.items() if k not in _KINDS}
        level: Document = levels_of_kind(document, self.kind).get(self.name, {})
        return level

    def _patch(self, said: Document) -> Document:
        return said if self.kind is None else {self.kind: {self.name: said}}


SITE = Level()


def levels_of(document: Document) -> tuple[Level, ...]:
    """All levels that a checked document has, the widest first."""
    return (
        SITE,
        *(Level(kind, name) for kind in _KINDS for name in levels_of_kind(document, kind)),
    )


def with_settings(document: Document, level: Level, said: Document) -> dict[str, Any]:
    """The document with these settings said at a level, beside what it says already.

    Raises:
        PolicyError: a name is no setting's.
    """
    _check_names(said)
    changed: dict[str, Any] = merge(document, level._patch(said))
    return changed


def without_settings(document: Document, level: Level, names: Iterable[str]) -> dict[str, Any]:
    """The document with these settings not said at a level any more, and no level left empty.

    Raises:
        PolicyError: a name is neither a setting's nor in the document, or the document has
            something else in the place of levels.
    """
    gone: dict[str, None] = dict.fromkeys(names)
    there = level.said_in(document)
    _check_names(name for name in gone if name not in there)
    changed: dict[str, Any] = merge(document, level._patch(gone))
    for kind in _KINDS:
        levels = {name: said for name, said in changed.pop(kind, {}).items() if said}
        if levels:
            changed[kind] = levels
    return changed


def _check_names(names: Iterable[str]) -> None:
    for name in names:
        if name not in SETTINGS:
            near = difflib.get_close_matches(name.lower().replace("_", "-"), SETTINGS)
            known = (
                f"did you mean {' or '.join(near)}?" if near else f"there is {', '.join(SETTINGS)}"
            )
            raise PolicyError(f"{name!r} is no setting; {known}")
