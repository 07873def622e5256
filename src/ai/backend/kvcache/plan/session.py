"""One session as the planner sees it, whoever captured it."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

import attrs

from ..engine.versions import Versions
from ..folder.entries import Owner
from ..gds.host import GdsHost
from ..model.source import ModelSource


@attrs.frozen
class Mount:
    """A folder that the manager mounts into the session."""

    name: str
    host_path: Path
    container_path: PurePosixPath
    writable: bool
    is_model: bool
    links_into: Path | None = None
    """Where links in the folder may lead. None: only to places in the folder itself."""
    known_model: ModelSource | None = None
    """The model at the folder's root, where its files are not on this host. None: they are."""


@attrs.frozen
class Located:
    """A file or directory of a mounted folder, as paths of this host."""

    root: Path
    """The folder, or what its links may lead into. Nothing outside of it may be touched on a user's
    behalf."""
    path: Path


@attrs.frozen
class Gpus:
    """The GPUs allotted to the session."""

    device: str
    """Backend.AI's name of their kind, such as ``cuda``."""
    count: int
    memory_bytes: int
    """Of the smallest; of a fractional GPU, the session's share."""
    is_fraction: bool = False
    """Whether it is a share of a GPU that others use too."""
    model: str | None = None
    """What their vendor calls them. None: not known."""


@attrs.frozen
class Service:
    """A model service: what the agent will start by itself."""

    start_command: tuple[str, ...]
    """Empty: the image's own command."""
    model_path: PurePosixPath


@attrs.frozen
class Image:
    """What is known of the engine before its container exists."""

    name: str
    labels: Mapping[str, str]
    found: Versions = attrs.field(factory=Versions)
    """What was found in its files."""


@attrs.frozen
class Session:
    """What a plan is made from."""

    kernel_id: str
    mounts: tuple[Mount, ...]
    environ: Mapping[str, str]
    image: Image
    gpus: Gpus | None
    service: Service | None
    owner: Owner
    shared_memory_bytes: int | None
    """The size of /dev/shm that the user asked for."""
    memory_bytes: int | None = None
    """The container's limit."""
    session_id: str | None = None
    user_id: str | None = None
    project_id: str | None = None
    resource_group: str | None = None
    gds: GdsHost | None = None
    """What this host has for GPUDirect Storage. None: nobody has looked."""
    is_inference: bool = False
    """Whether it serves a model to others, by its type."""

    def mount_at(self, path: PurePosixPath) -> Mount | None:
        """The mount that a path of the container lies in, the innermost if several."""
        candidates = [m for m in self.mounts if path.is_relative_to(m.container_path)]
        return max(candidates, key=lambda m: len(m.container_path.parts), default=None)

    def locate(self, path: PurePosixPath) -> Located | None:
        """Where a path of the container lies on this host; None when no folder holds it."""
        path = PurePosixPath(posixpath.normpath(path))
        mount = self.mount_at(path)
        if mount is None:
            return None
        return Located(
            mount.links_into or mount.host_path,
            mount.host_path / path.relative_to(mount.container_path),
        )
