"""What a namespace holds."""

from __future__ import annotations

import contextlib
import os
from contextlib import ExitStack
from pathlib import Path

import attrs

from ..beneath import open_directory
from .formats import FORMATS, FileKind
from .layout import NAMESPACES


@attrs.frozen
class Usage:
    """What the files of a namespace are and take."""

    size: int
    """Bytes of all regular files, whatever they are."""
    blocks: int | None
    """How many files are blocks of contexts. None: the form of the files is not known."""
    unfinished: int | None
    """How many were begun and not finished, now or by a process that ended."""


def namespace_usage(folder: Path, namespace: str, storage_format: str) -> Usage:
    """Walks a namespace; what vanishes during the walk does not count.

    Args:
        folder: the KV folder, as a path of this host. Links in it are not followed.
        namespace: its name.
        storage_format: the form of its files, as its manifest says.

    Raises:
        OSError: the namespace's directory cannot be opened.
    """
    names = FORMATS.get(storage_format)
    size = 0
    kinds = dict.fromkeys(FileKind, 0)
    with ExitStack() as stack:
        fd: int | None = None
        for name in (folder, NAMESPACES, namespace):
            fd = open_directory(name, fd)
            stack.callback(os.close, fd)
        for _, _, files, directory in os.fwalk(dir_fd=fd):
            for name in files:
                with contextlib.suppress(FileNotFoundError):
                    # A link counts with its own few bytes, not with those of its target.
                    size += os.stat(name, dir_fd=directory, follow_symlinks=False).st_size
                    if names is not None:
                        kinds[names.kind_of(name)] += 1
    if names is None:
        return Usage(size, None, None)
    return Usage(size, kinds[FileKind.BLOCK], kinds[FileKind.UNFINISHED])
