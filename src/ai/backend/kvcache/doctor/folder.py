"""A KV folder, or the volume that it lies in, as this node sees it."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

import attrs

from ..errors import KVCacheError
from ..sizes import gib
from .bounded import ProgramError, run_bounded
from .check import Finding, failed, ok, skipped, warning
from .mounts import Mount, mount_of, parse_mountinfo

if TYPE_CHECKING:
    from .host import Host

#: Of a healthy file server it takes milliseconds.
PROBE_SECONDS = 6.0

_MOUNTINFO = Path("/proc/self/mountinfo")

#: File systems that NVIDIA lists for GPUDirect Storage → what else is needed of their mount, by
#: its options, and how to put that right. docs.nvidia.com/gpudirect-storage, release notes.
_GDS_TYPES: Mapping[str, tuple[str, str] | None] = {
    "ext4": None,
    "xfs": None,
    "nfs": ("proto=rdma", "mount it with proto=rdma"),
    "nfs4": ("proto=rdma", "mount it with proto=rdma"),
    "lustre": None,
    "wekafs": None,
    "beegfs": None,
    "gpfs": None,
}

_NFS = frozenset({"nfs", "nfs4"})


class FolderUnknownError(KVCacheError):
    """Nothing could be learnt of a folder."""


@attrs.frozen
class FolderFacts:
    """What was tried, and what came of it."""

    path: Path
    missing: str | None = None
    """The error's name, where it is no folder on this node."""
    write: str | None = None
    direct: str | None = None
    free_bytes: int = 0
    total_bytes: int = 0
    mount: Mount | None = None


def facts_of(path: Path, said: Mapping[str, Any], mountinfo: str) -> FolderFacts:
    """The facts in what the probe said."""
    if said["missing"] is not None:
        return FolderFacts(path, missing=said["missing"])
    return FolderFacts(
        path=path,
        write=said["write"],
        direct=said["direct"],
        free_bytes=said["free"],
        total_bytes=said["total"],
        mount=mount_of(PurePosixPath(said["path"]), parse_mountinfo(mountinfo)),
    )


def look_at_folder(path: Path) -> FolderFacts:
    """Tries it, in another process.

    Raises:
        FolderUnknownError: it did not answer.
    """
    probe = [sys.executable, "-m", f"{__package__}.folder_probe", str(path)]
    try:
        ended = run_bounded(probe, PROBE_SECONDS)
        said = json.loads(ended.output)
    except (FileNotFoundError, ProgramError) as e:
        raise FolderUnknownError(
            f"{path} does not answer within {PROBE_SECONDS:.0f} s, or cannot be tried"
        ) from e
    except ValueError as e:
        raise FolderUnknownError(f"{path} cannot be tried") from e
    return facts_of(path, said, _MOUNTINFO.read_text())


def judge_folder(facts: FolderFacts) -> Finding:
    """Whether sessions of this node can keep anything in it."""
    mount = facts.mount
    if facts.missing is not None:
        return failed(
            f"{facts.path} is no folder on this node ({facts.missing})",
            "mount the volume on this node, at the path that it has on all others",
        )
    if facts.write is not None:
        return failed(
            f"{facts.path} cannot be written ({facts.write})",
            "mount it read-write, and let the agent's user write it: on NFS no_root_squash",
        )
    space = f"{gib(facts.free_bytes)} of {gib(facts.total_bytes)} free"
    if mount is not None and mount.point == PurePosixPath("/"):
        return warning(
            f"{facts.path} lies on this node's own disk, {space}",
            "mount the volume there, unless this node is to be the only one",
        )
    return ok(f"{facts.path} can be written, {space}")


def judge_file_system(facts: FolderFacts, has_gpu: bool) -> Finding:
    """Whether it fails when its server does, and can do GPUDirect Storage.

    Args:
        has_gpu: whether this node has GPUs of NVIDIA's.
    """
    mount = facts.mount
    if mount is None:
        return skipped("the folder cannot be used, or its file system is not known")
    said = f"{mount.type}, mounted at {mount.point}"
    if mount.type in _NFS and "hard" in mount.options:
        return warning(
            f"{said} with hard: while its server does not answer, sessions hang",
            "mount it with soft and a timeout, such as soft,timeo=50,retrans=2",
        )
    if not has_gpu:
        return ok(said)
    if mount.type not in _GDS_TYPES:
        return warning(
            f"{said}: no GPUDirect Storage, data goes through host memory",
            'use another file system, or set transport = "posix"',
        )
    needed = _GDS_TYPES[mount.type]
    if needed is not None and needed[0] not in mount.options:
        return warning(
            f"{said} without {needed[0]}: no GPUDirect Storage, data goes through host memory",
            f'{needed[1]}, or set transport = "posix"',
        )
    return ok(f"{said}; it can do GPUDirect Storage")


def judge_direct(facts: FolderFacts) -> Finding:
    """Whether the page cache can be passed by."""
    if facts.missing is not None or facts.write is not None:
        return skipped("the folder cannot be used")
    if facts.direct is not None:
        return warning(
            f"files cannot be written and read with O_DIRECT ({facts.direct}): no GPUDirect "
            "Storage, and the page cache fills with KV cache",
            "use another file system, or set direct-io = false",
        )
    return ok("files are written and read with it")


def _facts(host: Host) -> FolderFacts | Finding:
    """What is known of the folder, or why nothing is."""
    if host.folder is None:
        return skipped("no folder was named: --folder PATH, or --folder PROXY:VOLUME")
    try:
        return host.folder_facts()
    except FolderUnknownError as e:
        return failed(str(e), "look at its file server and the network; `mount` shows both")
    except KVCacheError as e:
        return failed(f"{host.folder} is not found: {e}", "name a path: --folder PATH")


def look_at_folder_itself(host: Host) -> Finding:
    facts = _facts(host)
    return facts if isinstance(facts, Finding) else judge_folder(facts)


def _known_facts(host: Host) -> FolderFacts | Finding:
    """The same for checks that say nothing of their own where nothing is known."""
    facts = _facts(host)
    if isinstance(facts, Finding) and facts.remedy is not None:
        return skipped("nothing is known of the folder")
    return facts


def look_at_file_system(host: Host) -> Finding:
    facts = _known_facts(host)
    if isinstance(facts, Finding):
        return facts
    return judge_file_system(facts, host.gpus().count > 0)


def look_at_direct(host: Host) -> Finding:
    facts = _known_facts(host)
    return facts if isinstance(facts, Finding) else judge_direct(facts)
