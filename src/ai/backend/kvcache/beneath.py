"""Opens files and directories of folders that users write to, without leaving the folder.

The agent often runs as root, and a user can put a link to anything into a folder of theirs. What is
opened here lies in the folder, whatever links are there and whenever they are changed.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path


def open_file(root: Path, path: Path) -> int:
    """Opens a file for reading and returns its descriptor. Links inside the folder are followed.

    Args:
        root: the folder.
        path: the file, as a path of this host.

    Raises:
        OSError: it cannot be opened, or lies outside of the folder.
    """
    # A descriptor of the place alone: opening what lies there can have effects (devices), and a
    # link can be changed between a look at it and its use.
    place = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        link = f"/proc/self/fd/{place}"
        if not Path(os.readlink(link)).is_relative_to(os.path.realpath(root)):
            raise PermissionError(errno.EACCES, "it is a link that leads out of its folder")
        # Without O_NONBLOCK, opening a FIFO would wait for a writer that never comes.
        return os.open(link, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    finally:
        os.close(place)


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
