"""What ``--kv-cache`` and its companions mean for a session that is about to be created."""

from __future__ import annotations

import re
from collections.abc import Mapping, MutableMapping, Sequence
from typing import Any
from uuid import UUID

import attrs

from ..engine.adapter import Transport
from ..errors import PolicyError
from ..policy.request import (
    BUFFER,
    CPU_TIER,
    FOLDER,
    SHARING,
    SWITCH,
    TRANSPORT,
    read_request,
)
from ..policy.settings import AUTO, Settings, Sharing

OFF = "off"

#: Where folders are mounted. Users cannot ask which place the administrator has chosen instead, so
#: the folder is named to the plugin too.
MOUNT_POINT = str(Settings().mount_point)


@attrs.frozen
class Flag:
    """One option."""

    name: str
    variable: str
    """What it becomes in the session's environment."""
    help: str
    metavar: str | None = None
    choices: tuple[str, ...] | None = None

    @property
    def parameter(self) -> str:
        """What it is called among a command's arguments."""
        return self.name.lstrip("-").replace("-", "_")


KV_CACHE = Flag(
    "--kv-cache",
    SWITCH,
    "Keep the KV cache of LLM contexts. auto: in the project's folder; off: not at all; else the "
    f"name or ID of a folder of yours, which is mounted at {MOUNT_POINT}.",
    metavar="FOLDER|auto|off",
)

FLAGS: Sequence[Flag] = (
    KV_CACHE,
    Flag(
        "--kv-cache-buffer",
        BUFFER,
        "GPU memory for transfers between GPU and KV folder, such as 24GiB, or auto.",
        metavar="SIZE",
    ),
    Flag(
        "--kv-cache-transport",
        TRANSPORT,
        "By GPUDirect Storage, or through host memory and ordinary files.",
        choices=(AUTO, *map(str, Transport)),
    ),
    Flag(
        "--kv-cache-cpu",
        CPU_TIER,
        "Host memory between GPU and KV folder, such as 64GiB, or off.",
        metavar="SIZE",
    ),
    Flag(
        "--kv-cache-share",
        SHARING,
        "Whose sessions share contexts; never wider than the administrator allows.",
        choices=tuple(map(str, Sharing)),
    ),
)


@attrs.frozen
class Choice:
    """What the flags of one command come to."""

    environ: Mapping[str, str]
    """Variables to add."""
    folder: str | None
    """The name or ID of a folder that has to be mounted. None: none."""


def choose(said: Mapping[Flag, str], environ: Mapping[str, str]) -> Choice:
    """Checks the flags, together with the variables that the command sets otherwise.

    Raises:
        PolicyError: something cannot be used, or is said twice; the message names the flag.
    """
    folder = said.get(KV_CACHE)
    if folder is not None and folder.lower() in (AUTO, OFF):
        said = {**said, KV_CACHE: folder.lower()}
        folder = None
    if said.get(KV_CACHE) == OFF and len(said) > 1:
        others = ", ".join(flag.name for flag in said if flag is not KV_CACHE)
        raise PolicyError(f"{KV_CACHE.name} off does not go with {others}")
    added = {f.variable: value for f, value in said.items() if f is not KV_CACHE or not folder}
    if folder is not None:
        _check_folder(folder)
        if not _is_id(folder):
            added[FOLDER] = folder
    names = {flag.variable: flag.name for flag in said} | {FOLDER: KV_CACHE.name}
    for variable, value in added.items():
        if environ.get(variable, value) != value:
            raise PolicyError(
                f"{names[variable]} and {variable}={environ[variable]} contradict each other"
            )
        try:
            read_request({variable: value})
        except PolicyError as e:
            raise PolicyError(str(e).replace(variable, names[variable])) from e
    read_request({**environ, **added})
    return Choice(added, folder)


def _is_id(text: str) -> bool:
    return as_id(text) is not None


def as_id(text: str) -> str | None:
    """An ID as Backend.AI writes it. None: the text is none."""
    try:
        return str(UUID(text))
    except ValueError:
        return None


def _plain(folder: str) -> str:
    return as_id(folder) or folder


def _check_folder(name: str) -> None:
    if not re.fullmatch(r"[\w.-]{1,64}", name):
        raise PolicyError(f"{KV_CACHE.name} {name!r}: no folder has such a name")


def _must_mount(folder: str, key: str, mounted: Mapping[str, str | None]) -> bool:
    """Whether a folder has to be mounted still.

    Args:
        folder: as the flag says it.
        key: the same as the command says it.
        mounted: folder → where the command mounts it; None: where Backend.AI does by itself.

    Raises:
        PolicyError: it is mounted where the plugin would not find it, or another is at its place.
    """
    targets = {_plain(name): target for name, target in mounted.items()}
    if _plain(key) in targets:
        if _is_id(folder) and targets[_plain(key)] != MOUNT_POINT:
            raise PolicyError(
                f"{KV_CACHE.name} {folder} is mounted elsewhere; mount it at {MOUNT_POINT}, or "
                "say its name"
            )
        return False
    taken = next((name for name, target in mounted.items() if target == MOUNT_POINT), None)
    if taken is not None:
        raise PolicyError(
            f"{KV_CACHE.name} {folder} would be mounted at {MOUNT_POINT}, and {taken} is already"
        )
    return True


def mount_to_add(choice: Choice, mounted: Mapping[str, str | None]) -> str | None:
    """The value of a ``--mount`` that is missing. None: none is.

    Args:
        mounted: folder → where the command mounts it; None: where Backend.AI does by itself.

    Raises:
        PolicyError: it is mounted where the plugin would not find it, or another is at its place.
    """
    if choice.folder is None or not _must_mount(choice.folder, choice.folder, mounted):
        return None
    return f"{choice.folder}:{MOUNT_POINT}"


@attrs.frozen
class Shape:
    """Where a JSON document of the client's says a session's environment and mounts."""

    part: tuple[str, ...]
    """The names that lead to the part which describes sessions. Empty: it is the whole."""
    environ: tuple[str, ...]
    """The names that lead from there to the variables."""
    are_entries: bool
    """Variables are written as ``{"entries": [{"name", "value"}]}``, not as a mapping."""
    mounts: str
    """The name of the list of mounts, each with ``vfolder_id``."""
    target: str
    """What a mount calls the place in the container."""

    def described(self, document: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        """The part that describes sessions.

        Raises:
            PolicyError: it is not there.
        """
        return _inside(document, self.part)

    def environ_of(self, described: MutableMapping[str, Any]) -> dict[str, str]:
        """
        Raises:
            PolicyError: what should hold it is not there.
        """
        said = _inside(described, self.environ[:-1]).get(self.environ[-1]) or {}
        if not self.are_entries:
            return dict(said)
        return {entry["name"]: entry["value"] for entry in said.get("entries", ())}

    def add(
        self, described: MutableMapping[str, Any], choice: Choice, folder_id: str | None
    ) -> None:
        """Writes a choice into the part that describes sessions.

        Args:
            folder_id: of the folder that has to be mounted. None: none.

        Raises:
            PolicyError: it is mounted where the plugin would not find it, or another is at its
                place.
        """
        environ = {**self.environ_of(described), **choice.environ}
        entries = [{"name": name, "value": value} for name, value in environ.items()]
        holder = _inside(described, self.environ[:-1])
        holder[self.environ[-1]] = {"entries": entries} if self.are_entries else environ
        if choice.folder is None or folder_id is None:
            return
        mounts = list(described.get(self.mounts) or ())
        mounted = {str(mount["vfolder_id"]): mount.get(self.target) for mount in mounts}
        if _must_mount(choice.folder, folder_id, mounted):
            described[self.mounts] = [*mounts, {"vfolder_id": folder_id, self.target: MOUNT_POINT}]


def _inside(document: MutableMapping[str, Any], path: Sequence[str]) -> MutableMapping[str, Any]:
    for name in path:
        inner = document.get(name)
        if not isinstance(inner, MutableMapping):
            raise PolicyError(f"there is no {name} in it to put the KV cache's settings into")
        document = inner
    return document
