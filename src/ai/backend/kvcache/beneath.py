"""Opens files and directories of folders that users write to, without leaving the folder.

The agent often runs as root, and a user can put a link to anything into a folder of theirs. What is
opened here lies in the folder, whatever links are there and whenever they are changed.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path


def _refuse_outside(root: Path, real: str) -> None:
    if not Path(real).is_relative_to(os.path.realpath(root)):
        raise PermissionError(errno.EACCES, "it is a link that leads out of its folder")


def open_file(root: Path, path: Path) -> int:
    """Opens a file for reading and returns its descriptor. Links inside the folder are followed.

    Args:
        root: the folder.
        path: the file, as a path of this host.

    Raises:
        OSError: it cannot be opened, or lies outside of the folder.
    """
    # Before opening, since opening a device can have effects; and again, since links can change.
    _refuse_outside(root, os.path.realpath(path))
    # Without O_NONBLOCK, opening a FIFO would wait for a writer that never comes.
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        _refuse_outside(root, os.readlink(f"/proc/self/fd/{fd}"))
    except OSError:
        os.close(fd)
        raise
    return fd


def open_directory(name: str | Path, parent: int | None = None) -> int:
    """Opens a directory that is no link and returns its descriptor.

    Args:
        name: a folder's path, or the name of an entry of ``parent``.
        parent: the descriptor of a directory.

    Raises:
        OSError: it is not there, not a directory, or a link.
    """
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
    # A folder's own path is the administrator's, and may well go through links.
    return os.open(name, flags if parent is None else flags | os.O_NOFOLLOW, dir_fd=parent)
