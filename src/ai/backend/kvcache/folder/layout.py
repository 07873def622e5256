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


def namespace_directory(folder: PurePosixPath, namespace: str) -> PurePosixPath:
    """What the engine is given as its storage."""
    return folder / NAMESPACES / namespace
