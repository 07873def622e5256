"""What is mounted where, by /proc/self/mountinfo."""

from __future__ import annotations

import re
from pathlib import PurePosixPath

import attrs

_ESCAPED = re.compile(r"\\([0-7]{3})")


@attrs.frozen
class Mount:
    """One file system where it is mounted."""

    point: PurePosixPath
    type: str
    """As the kernel calls it, such as ``ext4`` or ``nfs4``."""
    source: str
    options: frozenset[str]
    """Of the mount and of the file system."""


def _unescaped(text: str) -> str:
    """Spaces and the like are written as octal numbers."""
    return _ESCAPED.sub(lambda match: chr(int(match[1], 8)), text)


def parse_mountinfo(text: str) -> list[Mount]:
    """All mounts, the later ones over the earlier ones.

    Lines that are not understood are left out. See proc(5).
    """
    mounts: list[Mount] = []
    for line in text.splitlines():
        before, separator, after = line.partition(" - ")
        fields, rest = before.split(" "), after.split(" ", 2)
        if not separator or len(fields) < 6 or len(rest) < 3:
            continue
        mounts.append(
            Mount(
                point=PurePosixPath(_unescaped(fields[4])),
                type=rest[0],
                source=_unescaped(rest[1]),
                options=frozenset((*fields[5].split(","), *rest[2].split(","))),
            )
        )
    return mounts


def mount_of(path: PurePosixPath, mounts: list[Mount]) -> Mount | None:
    """The one that a path without links lies in."""
    above = [mount for mount in mounts if path.is_relative_to(mount.point)]
    # The longest; of several at the same place, the last one covers the others.
    return max(
        enumerate(above), key=lambda item: (len(item[1].point.parts), item[0]), default=(0, None)
    )[1]
