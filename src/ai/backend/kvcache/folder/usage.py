"""What a namespace holds."""

from __future__ import annotations

import contextlib
import os
import time
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
    size = files_in_all = size_of_blocks = 0
    oldest = now = time.time()
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
                    status = os.stat(name, dir_fd=directory, follow_symlinks=False)
                    size += status.st_size
                    files_in_all += 1
                    if names is None:
                        continue
                    kind = names.kind_of(name)
                    kinds[kind] += 1
                    if kind is FileKind.BLOCK:
                        size_of_blocks += status.st_size
                        oldest = min(oldest, status.st_mtime)
    if names is None:
        return Usage(size, files_in_all, None, None, None, None)
    blocks = kinds[FileKind.BLOCK]
    return Usage(
        size,
        files_in_all,
        blocks,
        kinds[FileKind.UNFINISHED],
        block_bytes=size_of_blocks / blocks if blocks else None,
        oldest_seconds=now - oldest if blocks else None,
    )
