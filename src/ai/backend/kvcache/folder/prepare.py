"""Makes a namespace ready before the engine starts.

An engine whose user cannot write its directory goes on answering and counts its failed stores as
completed, so owner and mode are settled here, by the agent, and checked.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import time
import uuid
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import attrs

from ..beneath import open_directory
from ..errors import FolderError
from .layout import FOLDER_MANIFEST, FORMAT_VERSION, METADATA, NAMESPACE_MANIFESTS, NAMESPACES
from .namespace import Namespace

#: Group-writable, and new entries keep the group, whatever the session's umask.
DIRECTORY_MODE = 0o2775

_MAX_MANIFEST_BYTES = 2**20


@attrs.frozen
class Owner:
    """The user and group that a session's processes run as. None: the agent's own."""

    uid: int | None = None
    gid: int | None = None


def _enter(stack: ExitStack, parent: int, name: str, owner: Owner | None = None) -> int:
    """Opens a directory, made if it is not there, for as long as the stack lives."""
    made = False
    with contextlib.suppress(FileExistsError):
        os.mkdir(name, dir_fd=parent)
        made = True
    fd = open_directory(name, parent)
    stack.callback(os.close, fd)
    if made and owner is not None:
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


def _write_json(directory: int, name: str, content: Mapping[str, Any]) -> None:
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


def _read_format_version(directory: int) -> int | None:
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        with os.fdopen(os.open(FOLDER_MANIFEST, flags, dir_fd=directory), "rb") as file:
            version = json.loads(file.read(_MAX_MANIFEST_BYTES))["format_version"]
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError, RecursionError) as e:
        raise FolderError(f"{METADATA}/{FOLDER_MANIFEST} in the KV folder is damaged: {e!r}") from e
    if not isinstance(version, int):
        raise FolderError(
            f"{METADATA}/{FOLDER_MANIFEST} in the KV folder is damaged: {version!r} is no version"
        )
    return version


def _owner_can_write(directory: int, owner: Owner) -> bool:
    """Whether a process of this owner may create files in the directory, by its mode bits."""
    if owner.uid is None or owner.uid == 0:
        return os.access(".", os.W_OK | os.X_OK, dir_fd=directory)
    status = os.fstat(directory)
    if status.st_uid == owner.uid:
        return status.st_mode & 0o300 == 0o300
    if owner.gid is not None and status.st_gid == owner.gid:
        return status.st_mode & 0o030 == 0o030
    return status.st_mode & 0o003 == 0o003


def _prepare(
    stack: ExitStack, folder: Path, namespace: Namespace, owner: Owner, facts: Mapping[str, Any]
) -> None:
    root = open_directory(folder)
    stack.callback(os.close, root)
    metadata = _enter(stack, root, METADATA)
    version = _read_format_version(metadata)
    if version is not None and version > FORMAT_VERSION:
        raise FolderError(
            f"the KV folder has format version {version}, this plugin knows {FORMAT_VERSION}; "
            "update the plugin on this agent or use another folder"
        )
    if version is None:
        _write_json(metadata, FOLDER_MANIFEST, {"format_version": FORMAT_VERSION})
    manifest = {
        "format_version": FORMAT_VERSION,
        "namespace": namespace.name,
        "description": namespace.description,
        "last_use": int(time.time()),
        **facts,
    }
    manifests = _enter(stack, metadata, NAMESPACE_MANIFESTS)
    _write_json(manifests, f"{namespace.name}.json", manifest)
    # The session only writes its namespace; the rest stays the agent's.
    namespaces = _enter(stack, root, NAMESPACES)
    directory = _enter(stack, namespaces, namespace.name, owner)
    if not _owner_can_write(directory, owner):
        raise FolderError(
            f"{NAMESPACES}/{namespace.name} in the KV folder is not writable for the session's "
            f"user (uid {owner.uid}, gid {owner.gid}); correct its owner or mode"
        )


def prepare_namespace(
    folder: Path, namespace: Namespace, owner: Owner, facts: Mapping[str, Any]
) -> None:
    """Creates the namespace's directory and manifests. Links in the folder are not followed.

    Args:
        folder: the KV folder, as a path of this host.
        owner: whom the engine runs as.
        facts: what the manifest holds besides the description (bytes per token and the like).

    Raises:
        FolderError: the folder is missing, read-only, full, of a newer format, damaged, or not
            writable by the owner.
    """
    if not folder.is_dir():
        raise FolderError("the KV folder is not there on this node")
    try:
        with ExitStack() as stack:
            _prepare(stack, folder, namespace, owner, facts)
    except OSError as e:
        if e.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
            raise FolderError(
                f"the KV folder cannot be written on this node ({e.strerror}); "
                "mount it read-write and check its permissions"
            ) from e
        name = f" at {e.filename}" if e.filename else ""
        raise FolderError(f"the KV folder cannot be prepared{name}: {e.strerror}") from e
