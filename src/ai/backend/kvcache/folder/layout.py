"""Names inside a KV folder. The same for the host's path and the container's."""

from __future__ import annotations

from pathlib import PurePosixPath

#: Version of everything below; written to the folder's manifest.
FORMAT_VERSION = 1

#: In a folder that is mounted for sessions by policy: a directory for each whose contexts are kept
#: apart, which is all that their sessions see, and a KV folder of its own.
SCOPES = "scopes"

#: What the plugin keeps about the folder.
METADATA = ".kvcache"

#: In METADATA: what the folder is.
FOLDER_MANIFEST = "folder.json"

#: In METADATA: a manifest for each namespace, ``<namespace>.json``.
NAMESPACE_MANIFESTS = "namespaces"

#: In METADATA: for each namespace a directory with a file for each kernel that uses it.
LEASES = "leases"

#: A directory for each namespace, where the engine's own files lie.
NAMESPACES = "ns"

#: In a namespace: the directory of one session for files that it has begun, as far as its engine
#: can be told of such a directory. Two sessions that store the same block would use the same name.
_TEMPORARY = ".tmp-"


def temporary_directory(session: str) -> str:
    """The name of a session's directory for files that it has begun, in a namespace."""
    return f"{_TEMPORARY}{session}"


def is_temporary(directory: str) -> bool:
    """Whether that is the name of such a directory."""
    return directory.startswith(_TEMPORARY)


def namespace_directory(folder: PurePosixPath, namespace: str) -> PurePosixPath:
    """What the engine is given as its storage."""
    return folder / NAMESPACES / namespace
