"""How much a namespace holds."""

from __future__ import annotations

import os
from pathlib import Path


def directory_bytes(directory: Path) -> int:
    """Bytes of all regular files below a directory; what vanishes during the walk counts as 0.

    Raises:
        OSError: the directory itself cannot be listed.
    """
    total = 0
    pending = [os.fspath(directory)]
    while pending:
        path = pending.pop()
        try:
            entries = os.scandir(path)
        except FileNotFoundError:
            if path == os.fspath(directory):
                raise
            continue
        with entries:
            for entry in entries:
                try:
                    if entry.is_dir(follow_symlinks=False):
                        pending.append(entry.path)
                    elif entry.is_file(follow_symlinks=False):
                        total += entry.stat(follow_symlinks=False).st_size
                except FileNotFoundError:
                    continue
    return total
