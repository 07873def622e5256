"""Directories and JSON files of a KV folder, made and read without following any link."""

from __future__ import annotations

import contextlib
import json
import os
import uuid
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

import attrs

from ..beneath import open_directory
from ..errors import FolderError

#: Group-writable, and new entries keep the group, whatever the session's umask.
DIRECTORY_MODE = 0o2775

#: The agent writes to it, and everybody may go through it.
_PASSABLE_MODE = 0o755

_MAX_JSON_BYTES = 2**20


@attrs.frozen
class Owner:
    """The user and group that a session's processes run as. None: the agent's own."""

    uid: int | None = None
    gid: int | None = None


def enter(stack: ExitStack, parent: int, name: str, owner: Owner | None = None) -> int:
    """Opens a directory, made if it is not there, for as long as the stack lives."""
    made = False
    with contextlib.suppress(FileExistsError):
        os.mkdir(name, dir_fd=parent)
        made = True
    fd = open_directory(name, parent)
    stack.callback(os.close, fd)
    if made and owner is None:
        # Sessions go through it, whatever the agent's umask.
        os.fchmod(fd, _PASSABLE_MODE)
    elif made and owner is not None:
        unchanged = -1
        if os.geteuid() == 0:
            os.fchown(
                fd,
                unchanged if owner.uid is None else owner.uid,
                unchanged if owner.gid is None else owner.gid,
            )
        # After fchown, which clears the setgid bit.
        os.fchmod(fd, DIRECTORY_MODE)
    return fd


def write_json(directory: int, name: str, content: Mapping[str, Any]) -> None:
    """Replaces the file as a whole: a reader sees the old content or the new, never a part."""
    temporary = f".{name}.{uuid.uuid4().hex}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    try:
        with os.fdopen(os.open(temporary, flags, 0o644, dir_fd=directory), "w") as file:
            json.dump(content, file, indent=2, sort_keys=True)
            file.write("\n")
        os.replace(temporary, name, src_dir_fd=directory, dst_dir_fd=directory)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary, dir_fd=directory)
        raise


def read_json(directory: int, name: str, path: str) -> Mapping[str, Any] | None:
    """The JSON object in a file; None when the file is not there.

    Args:
        directory: the descriptor of its directory.
        name: its name there.
        path: what to call it in messages.

    Raises:
        FolderError: it holds something else.
        OSError: it cannot be read, or is a link.
    """
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        with os.fdopen(os.open(name, flags, dir_fd=directory), "rb") as file:
            content = json.loads(file.read(_MAX_JSON_BYTES))
    except FileNotFoundError:
        return None
    except (ValueError, RecursionError) as e:
        raise FolderError(f"{path} in the KV folder is damaged: {e!r}") from e
    if not isinstance(content, dict):
        raise FolderError(f"{path} in the KV folder is damaged: it holds no object")
    return content
