"""Which level of a policy each setting of a session comes from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from .describe import DESCRIPTIONS
from .edit import SITE, Level
from .policy import PROJECTS, RESOURCE_GROUPS
from .settings import Mode


@attrs.frozen
class Effective:
    """One setting."""

    name: str
    value: str | None
    """As it is written in a policy. None: nothing is said, and there is no default."""
    level: Level | None
    """None: it is the default."""


def effective_settings(
    document: Mapping[str, Any], resource_group: str | None = None, project: str | None = None
) -> tuple[Effective, ...]:
    """What applies, in the order of the settings' descriptions, as ``Policy.settings_for`` has it.

    Args:
        document: checked.
        project: its id.
    """
    levels = (
        SITE,
        *([Level(RESOURCE_GROUPS, resource_group)] if resource_group else []),
        *([Level(PROJECTS, project)] if project else []),
    )
    effective = {
        d.name: Effective(d.name, None if d.default is None else str(d.default), None)
        for d in DESCRIPTIONS
    }
    for level in levels:
        for name, value in level.said_in(document).items():
            if not _is_off(effective[name]):
                effective[name] = Effective(name, value_text(value), level)
    return tuple(effective.values())


def _is_off(setting: Effective) -> bool:
    """Whether it is what no narrower level can undo."""
    return setting.name == "mode" and setting.value == Mode.OFF


def value_text(value: Any) -> str:
    """A value of a policy as one would type it."""
    return str(value).lower() if isinstance(value, bool) else str(value)
