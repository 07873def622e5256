"""Who uses a namespace now.

A lease is an empty file that the agent touches while a session runs, and removes when it ends. One
that was not touched for long belongs to an agent that crashed, or lost the folder: it is stale, and
counts no more.
"""

from __future__ import annotations

import contextlib
import os
from contextlib import ExitStack
from pathlib import Path

from ..beneath import open_directory
from .entries import enter
from .layout import LEASES, METADATA

#: An agent touches its leases once a minute; one that misses this many has crashed.
STALE_SECONDS = 15 * 60.0


def touch_in(stack: ExitStack, metadata: int, namespace: str, kernel_id: str) -> None:
    """Makes or renews a lease.

    Args:
        metadata: the descriptor of the folder's own directory.

    Raises:
        OSError: the folder cannot be written.
    """
    leases = enter(stack, metadata, LEASES)
    directory = enter(stack, leases, namespace)
    flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    fd = os.open(kernel_id, flags, 0o644, dir_fd=directory)
    try:
        os.utime(fd)
    finally:
        os.close(fd)


def _metadata(stack: ExitStack, folder: Path) -> int:
    root = open_directory(folder)
    stack.callback(os.close, root)
    metadata = open_directory(METADATA, root)
    stack.callback(os.close, metadata)
    return metadata


def touch(folder: Path, namespace: str, kernel_id: str) -> None:
    """Renews a running session's lease.

    Raises:
        OSError: the folder is not there or cannot be written.
    """
    with ExitStack() as stack:
        touch_in(stack, _metadata(stack, folder), namespace, kernel_id)


def _directory(stack: ExitStack, folder: Path, namespace: str) -> int:
    fd = _metadata(stack, folder)
    for name in (LEASES, namespace):
        fd = open_directory(name, fd)
        stack.callback(os.close, fd)
    return fd


def release(folder: Path, namespace: str, kernel_id: str) -> None:
    """Removes the lease of a session that has ended. One that is gone already is no fault.

    Raises:
        OSError: the folder is not there or cannot be written.
    """
    with ExitStack() as stack, contextlib.suppress(FileNotFoundError):
        os.unlink(kernel_id, dir_fd=_directory(stack, folder, namespace))


def holders(folder: Path, namespace: str, now: float) -> tuple[str, ...]:
    """The kernels that use a namespace, sorted; stale leases are left out.

    Args:
        now: seconds since the epoch, by the clock that the folder's server sets times with.

    Raises:
        OSError: the folder cannot be read.
    """
    held: list[str] = []
    with ExitStack() as stack:
        try:
            directory = _directory(stack, folder, namespace)
        except FileNotFoundError:
            return ()
        for name in os.listdir(directory):
            with contextlib.suppress(FileNotFoundError):
                status = os.stat(name, dir_fd=directory, follow_symlinks=False)
                if now - status.st_mtime <= STALE_SECONDS:
                    held.append(name)
    return tuple(sorted(held))
