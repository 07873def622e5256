"""How much a namespace holds."""

from __future__ import annotations

import contextlib
import os
from contextlib import ExitStack
from pathlib import Path

from ..beneath import open_directory
from .layout import NAMESPACES


def namespace_bytes(folder: Path, namespace: str) -> int:
    """Bytes of all regular files of a namespace; what vanishes during the walk counts as 0.

    Args:
        folder: the KV folder, as a path of this host. Links in it are not followed.

    Raises:
        OSError: the namespace's directory cannot be opened.
    """
    total = 0
    with ExitStack() as stack:
        fd: int | None = None
        for name in (folder, NAMESPACES, namespace):
            fd = open_directory(name, fd)
            stack.callback(os.close, fd)
        for _, _, files, directory in os.fwalk(dir_fd=fd):
            for name in files:
                with contextlib.suppress(FileNotFoundError):
                    # A link counts with its own few bytes, not with those of its target.
                    total += os.stat(name, dir_fd=directory, follow_symlinks=False).st_size
    return total
