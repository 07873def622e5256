"""Makes a namespace ready before the engine starts.

An engine whose user cannot write its directory goes on answering and counts its failed stores as
completed, so owner and mode are settled here, by the agent, and checked.
"""

from __future__ import annotations

import errno
import json
import os
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs

from ..errors import FolderError
from .layout import FORMAT_VERSION, folder_manifest, namespace_directory, namespace_manifest
from .namespace import Namespace

#: Group-writable, and new entries keep the group, whatever the session's umask.
DIRECTORY_MODE = 0o2775


@attrs.frozen
class Owner:
    """The user and group that a session's processes run as. None: the agent's own."""

    uid: int | None = None
    gid: int | None = None


def _make_owned_directory(path: Path, owner: Owner) -> None:
    try:
        path.mkdir()
    except FileExistsError:
        return
    if os.geteuid() == 0 and (owner.uid is not None or owner.gid is not None):
        unchanged = -1
        os.chown(
            path,
            unchanged if owner.uid is None else owner.uid,
            unchanged if owner.gid is None else owner.gid,
        )
    # After chown, which clears the setgid bit.
    path.chmod(DIRECTORY_MODE)


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Replaces the file as a whole: a reader sees the old content or the new, never a part."""
    fd, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(fd, "w") as file:
            json.dump(content, file, indent=2, sort_keys=True)
            file.write("\n")
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def _read_format_version(path: Path) -> int | None:
    try:
        version = json.loads(path.read_bytes())["format_version"]
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as e:
        raise FolderError(f"{path.name} in .kvcache of the KV folder is damaged: {e!r}") from e
    if not isinstance(version, int):
        raise FolderError(f"{path.name} in .kvcache of the KV folder is damaged: {version!r}")
    return version


def _owner_can_write(directory: Path, owner: Owner) -> bool:
    """Whether a process of this owner may create files in the directory, by its mode bits."""
    if owner.uid is None or owner.uid == 0:
        return os.access(directory, os.W_OK | os.X_OK)
    status = directory.stat()
    if status.st_uid == owner.uid:
        return status.st_mode & 0o300 == 0o300
    if owner.gid is not None and status.st_gid == owner.gid:
        return status.st_mode & 0o030 == 0o030
    return status.st_mode & 0o003 == 0o003


def prepare_namespace(
    folder: Path, namespace: Namespace, owner: Owner, facts: Mapping[str, Any]
) -> Path:
    """Creates the namespace's directory and manifests, and returns the directory.

    Args:
        folder: the KV folder, as a path of this host.
        owner: whom the engine runs as.
        facts: what the manifest holds besides the description (bytes per token and the like).

    Raises:
        FolderError: the folder is missing, read-only, full, of a newer format, or not writable
            by the owner.
    """
    if not folder.is_dir():
        raise FolderError("the KV folder is not there on this node")
    directory = namespace_directory(folder, namespace.name)
    manifest = namespace_manifest(folder, namespace.name)
    try:
        version = _read_format_version(folder_manifest(folder))
        if version is not None and version > FORMAT_VERSION:
            raise FolderError(
                f"the KV folder has format version {version}, this plugin knows {FORMAT_VERSION}; "
                "update the plugin on this agent or use another folder"
            )
        # The session only writes its namespace; the rest stays the agent's.
        manifest.parent.mkdir(parents=True, exist_ok=True)
        directory.parent.mkdir(exist_ok=True)
        _make_owned_directory(directory, owner)
        if version is None:
            _write_json(folder_manifest(folder), {"format_version": FORMAT_VERSION})
        _write_json(
            manifest,
            {
                "format_version": FORMAT_VERSION,
                "namespace": namespace.name,
                "description": namespace.description,
                "last_use": int(time.time()),
                **facts,
            },
        )
    except OSError as e:
        if e.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
            raise FolderError(
                f"the KV folder cannot be written on this node ({e.strerror}); "
                "mount it read-write and check its permissions"
            ) from e
        raise FolderError(f"the KV folder cannot be prepared: {e.strerror}") from e
    if not _owner_can_write(directory, owner):
        raise FolderError(
            f"ns/{namespace.name} in the KV folder is not writable for the session's user "
            f"(uid {owner.uid}, gid {owner.gid}); correct its owner or mode"
        )
    return directory
