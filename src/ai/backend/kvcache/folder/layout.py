"""Names inside a KV folder. Pure functions: the same for the host's path and the container's."""

from __future__ import annotations

from pathlib import PurePath

#: Version of everything below; written to folder.json.
FORMAT_VERSION = 1


def folder_manifest[P: PurePath](folder: P) -> P:
    return folder / ".kvcache" / "folder.json"


def namespace_manifest[P: PurePath](folder: P, namespace: str) -> P:
    return folder / ".kvcache" / "namespaces" / f"{namespace}.json"


def namespace_directory[P: PurePath](folder: P, namespace: str) -> P:
    """Where the engine's own files lie."""
    return folder / "ns" / namespace
