"""What a namespace holds."""

from __future__ import annotations

import os
import time
from contextlib import ExitStack
from pathlib import Path

import attrs

from ..beneath import open_directory
from .formats import FORMATS, FileKind
from .layout import NAMESPACES, is_temporary


@attrs.frozen
class Usage:
    """What the files of a namespace are and take."""

    size: int
    """Bytes of all files, whatever they are."""
    files: int
    blocks: int | None
    """How many files are blocks of contexts. None: the form of the files is not known."""
    unfinished: int | None
    """How many were begun and not finished, now or by a process that ended."""
    block_bytes: float | None
    """Of a block in the mean. None: there is none, or the form of the files is not known."""
    oldest_seconds: float | None
    """How long ago the oldest block was written. None: likewise."""


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
    size = files_in_all = blocks = size_of_blocks = unfinished = 0
    oldest = now = time.time()
    with ExitStack() as stack:
        fd: int | None = None
        for name in (folder, NAMESPACES, namespace):
            fd = open_directory(name, fd)
            stack.callback(os.close, fd)
        for path, _, files, directory in os.fwalk(dir_fd=fd):
            # What a session has begun has its last name there already.
            begun = is_temporary(os.path.basename(path))
            for name in files:
                try:
                    # A link counts with its own few bytes, not with those of its target.
                    status = os.stat(name, dir_fd=directory, follow_symlinks=False)
                except FileNotFoundError:
                    continue
                size += status.st_size
                files_in_all += 1
                kind = None if names is None else names.kind_of(name)
                if begun and kind is not None:
                    kind = FileKind.UNFINISHED
                if kind is FileKind.BLOCK:
                    blocks += 1
                    size_of_blocks += status.st_size
                    oldest = min(oldest, status.st_mtime)
                elif kind is FileKind.UNFINISHED:
                    unfinished += 1
    if names is None:
        return Usage(size, files_in_all, None, None, None, None)
    return Usage(
        size,
        files_in_all,
        blocks,
        unfinished,
        block_bytes=size_of_blocks / blocks if blocks else None,
        oldest_seconds=now - oldest if blocks else None,
    )
