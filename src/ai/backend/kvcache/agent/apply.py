"""Carries a preparation out on a kernel that is being created."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, MutableMapping
from pathlib import Path
from typing import Any

from ai.backend.agent.resources import Mount as AgentMount
from ai.backend.common.types import MountPermission, MountTypes

from ..plan.decide import Preparation
from .capture import Captured


def write_files(
    directory: Path, files: Mapping[str, str], links: Mapping[str, str] | None = None
) -> None:
    """Writes the session's files where it can read them, whoever it runs as.

    Args:
        directory: the kernel's folder for them.
        files: name → content.
        links: name → where the link leads, as a path of the container.
    """
    for name, target in (links or {}).items():
        with contextlib.suppress(FileExistsError):
            (directory / name).symlink_to(target)
    for name, content in files.items():
        path = directory / name
        path.write_text(content)
        path.chmod(0o644)


def change_kernel(captured: Captured, preparation: Preparation) -> None:
    """Sets start command, shared memory, folder and environment, in memory only.

    What depends on the shape of the agent's objects comes first, so that a surprise in it leaves
    the environment, and with it the session's programs, as they were.
    """
    kernel_config: MutableMapping[str, Any] = captured.context.kernel_config
    resource_opts = kernel_config.get("resource_opts")
    if preparation.shared_memory_bytes and resource_opts:
        # The agent lets this value win over the one among the docker arguments.
        resource_opts["shmem"] = preparation.shared_memory_bytes
    if preparation.start_command is not None:
        service = kernel_config["internal_data"]["model_definition"]["models"][0]["service"]
        service["start_command"] = list(preparation.start_command)
    if preparation.mount is not None:
        # The agent makes a container's mounts from these, and knows them again when it restarts.
        captured.resource_spec.mounts.append(
            AgentMount(
                MountTypes.BIND,
                preparation.mount.host_path,
                Path(preparation.mount.container_path),
                MountPermission.READ_WRITE,
            )
        )
    captured.environ.update(preparation.environment)


def docker_arguments(preparation: Preparation) -> dict[str, Any]:
    """What is merged into the container's configuration: lists behind those of others."""
    host_config: dict[str, Any] = {}
    if preparation.shared_memory_bytes:
        host_config["ShmSize"] = preparation.shared_memory_bytes
    if preparation.memory_directories:
        # For whoever the session runs as. Without a mode, versions of runc differ.
        host_config["Tmpfs"] = {str(path): "mode=1777" for path in preparation.memory_directories}
    if preparation.devices:
        host_config["Devices"] = [
            {
                "PathOnHost": str(path),
                "PathInContainer": str(path),
                "CgroupPermissions": "rwm",
            }
            for path in preparation.devices
        ]
    if preparation.host_mounts:
        host_config["Mounts"] = [
            {"Type": "bind", "Source": str(path), "Target": str(path), "ReadOnly": True}
            for path in preparation.host_mounts
        ]
    return {"HostConfig": host_config} if host_config else {}
