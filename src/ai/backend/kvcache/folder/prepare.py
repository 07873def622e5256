"""Makes a namespace ready before the engine starts.

An engine whose user cannot write its directory goes on answering and counts its failed stores as
completed, so owner and mode are settled here, by the agent, and checked.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ..beneath import open_directory
from ..errors import FolderError
from .entries import Owner, enter, read_json, write_json
from .layout import (
    FOLDER_MANIFEST,
    FORMAT_VERSION,
    METADATA,
    NAMESPACE_MANIFESTS,
    NAMESPACES,
    SCOPES,
)
from .lease import touch_in
from .namespace import Namespace, namespace_of

_NO_LIMITS: Mapping[str, Any] = MappingProxyType({})


def _format_version(manifest: Mapping[str, Any], name: str) -> int:
    version = manifest.get("format_version")
    if type(version) is not int:
        raise FolderError(
            f"{METADATA}/{name} in the KV folder is damaged: {version!r} is no version"
        )
    if version > FORMAT_VERSION:
        raise FolderError(
            f"{METADATA}/{name} in the KV folder has format version {version}, this plugin knows "
            f"{FORMAT_VERSION}; update the plugin on this agent or use another folder"
        )
    return version


def _check_manifest(manifest: Mapping[str, Any], namespace: Namespace, name: str) -> None:
    """A namespace that another description claims is never written into.

    Raises:
        FolderError: the manifest is of a newer format, damaged, or not this namespace's.
    """
    _format_version(manifest, name)
    description = manifest.get("description")
    try:
        matches = isinstance(description, dict) and namespace_of(description).name == namespace.name
    except ValueError:
        matches = False
    if not matches:
        raise FolderError(
            f"{METADATA}/{name} in the KV folder describes something else than its name says; "
            f"remove it together with {NAMESPACES}/{namespace.name}"
        )


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
    stack: ExitStack,
    folder: Path,
    namespace: Namespace,
    owner: Owner,
    kernel_id: str,
    facts: Mapping[str, Any],
    limits: Mapping[str, Any],
) -> None:
    root = open_directory(folder)
    stack.callback(os.close, root)
    metadata = enter(stack, root, METADATA)
    manifest = read_json(metadata, FOLDER_MANIFEST, f"{METADATA}/{FOLDER_MANIFEST}")
    if manifest is not None:
        _format_version(manifest, FOLDER_MANIFEST)
    wanted = {"format_version": FORMAT_VERSION, **({"limits": dict(limits)} if limits else {})}
    if manifest is None or (limits and manifest != wanted):
        write_json(metadata, FOLDER_MANIFEST, wanted)
    manifests = enter(stack, metadata, NAMESPACE_MANIFESTS)
    name = f"{namespace.name}.json"
    path = f"{NAMESPACE_MANIFESTS}/{name}"
    previous = read_json(manifests, name, f"{METADATA}/{path}")
    now = int(time.time())
    if previous is not None:
        _check_manifest(previous, namespace, path)
    write_json(
        manifests,
        name,
        {
            "format_version": FORMAT_VERSION,
            "namespace": namespace.name,
            "description": namespace.description,
            "created": (previous or {}).get("created", now),
            "last_use": now,
            **facts,
        },
    )
    # The session only writes its namespace; the rest stays the agent's.
    namespaces = enter(stack, root, NAMESPACES)
    directory = enter(stack, namespaces, namespace.name, owner)
    if not _owner_can_write(directory, owner):
        raise FolderError(
            f"{NAMESPACES}/{namespace.name} in the KV folder is not writable for the session's "
            f"user (uid {owner.uid}, gid {owner.gid}); correct its owner or mode"
        )
    touch_in(stack, metadata, namespace.name, kernel_id)


def _cannot_be_written(error: OSError, what: str) -> FolderError:
    if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
        return FolderError(
            f"{what} cannot be written on this node ({error.strerror}); "
            "mount it read-write and check its permissions"
        )
    name = f" at {error.filename}" if error.filename else ""
    return FolderError(f"{what} cannot be prepared{name}: {error.strerror}")


def prepare_scope(folder: Path, scope: str) -> Path:
    """Makes the directory that is mounted for one scope's sessions in the place of the folder.

    Args:
        folder: the folder of all, as a path of this host.
        scope: the directory's name.

    Returns:
        It, as a path of this host: a KV folder.

    Raises:
        FolderError: the folder is missing, or cannot be written, on this node.
    """
    if not folder.is_dir():
        raise FolderError("the KV folder is not there on this node; is its volume mounted?")
    try:
        with ExitStack() as stack:
            root = open_directory(folder)
            stack.callback(os.close, root)
            enter(stack, enter(stack, root, SCOPES), scope)
    except OSError as e:
        raise _cannot_be_written(e, "the KV folder") from e
    return folder / SCOPES / scope


def prepare_namespace(
    folder: Path,
    namespace: Namespace,
    owner: Owner,
    kernel_id: str,
    facts: Mapping[str, Any],
    limits: Mapping[str, Any] = _NO_LIMITS,
) -> None:
    """Creates the namespace's directory, manifests and lease. No link in the folder is followed.

    Args:
        folder: the KV folder, as a path of this host.
        owner: whom the engine runs as.
        kernel_id: whose lease it becomes.
        facts: what the manifest holds besides the description (bytes per token and the like).
        limits: what the folder's manifest says of its size and age, for whoever sweeps it. Empty:
            what it says already stays.

    Raises:
        FolderError: the folder is missing, read-only, full, of a newer format, damaged, or not
            writable by the owner.
    """
    if not folder.is_dir():
        raise FolderError("the KV folder is not there on this node")
    try:
        with ExitStack() as stack:
            _prepare(stack, folder, namespace, owner, kernel_id, facts, limits)
    except OSError as e:
        raise _cannot_be_written(e, "the KV folder") from e
