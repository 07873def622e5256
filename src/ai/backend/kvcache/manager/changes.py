"""From what the manager keeps of ours to what it should keep."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from uuid import UUID

import attrs


@attrs.frozen
class Kept[P]:
    """A preset that the manager has."""

    id: UUID
    preset: P


@attrs.frozen
class Changes[P]:
    """What makes what the manager has into what it should have."""

    create: tuple[P, ...]
    update: tuple[Kept[P], ...]
    """With the new content."""
    delete: tuple[Kept[P], ...]
    same: tuple[Kept[P], ...]


@attrs.frozen
class Needed[P]:
    """What has to be done at the manager."""

    changes: Changes[P]
    notes: tuple[str, ...] = ()
    """What cannot be done, for people."""


def changes[P](
    kept: Iterable[Kept[P]], wanted: Iterable[P], identity: Callable[[P], Hashable | None]
) -> Changes[P]:
    """How to get from what is kept to what is wanted.

    Args:
        identity: what a preset is known by, whatever else it says. None: it is somebody else's,
            and does not matter.
    """
    missing = {identity(preset): preset for preset in wanted}
    update: list[Kept[P]] = []
    delete: list[Kept[P]] = []
    same: list[Kept[P]] = []
    for one in kept:
        known_by = identity(one.preset)
        if known_by is None:
            continue
        preset = missing.pop(known_by, None)
        if preset is None:
            # Of another version, or there twice.
            delete.append(one)
        elif preset == one.preset:
            same.append(one)
        else:
            update.append(Kept(one.id, preset))
    return Changes(tuple(missing.values()), tuple(update), tuple(delete), tuple(same))
