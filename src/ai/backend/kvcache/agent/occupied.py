"""What a container has already at some paths, given by others than the plugin.

Docker refuses a container with two mounts at one path, so whoever gave a container what GPUDirect
Storage needs before keeps what they have.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

import attrs
from ai.backend.logging import BraceStyleAdapter

from ..plan.decide import Preparation
from .capture import Captured

log = BraceStyleAdapter(logging.getLogger(__spec__.name))

#: The agent merges what an administrator wrote here into each container's configuration, and looks
#: for it in these directories (ai.backend.agent.docker.agent, start_container).
_OPTIONS_FILE = "agent-docker-container-opts.json"


def _option_files() -> Iterator[Path]:
    for directory in (Path("/etc/backend.ai"), Path.home() / ".config/backend.ai", Path.cwd()):
        yield directory / _OPTIONS_FILE


def _paths(config: Mapping[str, Any]) -> Iterator[str]:
    """Of one configuration as Docker's API takes it."""
    host_config = config.get("HostConfig") or {}
    for device in host_config.get("Devices") or ():
        yield device["PathInContainer"]
    for mount in host_config.get("Mounts") or ():
        yield mount["Target"]
    for bind in host_config.get("Binds") or ():
        yield bind.split(":")[1]
    yield from host_config.get("Tmpfs") or ()


def _occupied_paths(captured: Captured) -> set[PurePosixPath]:
    context = captured.context
    paths = [str(mount.target) for mount in captured.resource_spec.mounts]
    for config in (*context.container_configs, context.computer_docker_args):
        paths += _paths(config)
    for file in _option_files():
        if file.is_file():
            paths += _paths(json.loads(file.read_bytes()))
    return {PurePosixPath(path) for path in paths}


def _free(
    paths: Iterable[PurePosixPath], occupied: set[PurePosixPath]
) -> tuple[PurePosixPath, ...]:
    return tuple(path for path in paths if path not in occupied)


async def without_occupied(captured: Captured, preparation: Preparation) -> Preparation:
    """Without the host's devices and files that the container has by others already.

    Without all of them where it is not understood what others give.
    """
    if not (preparation.devices or preparation.host_mounts):
        return preparation
    try:
        occupied = await asyncio.to_thread(_occupied_paths, captured)
    except Exception as e:
        log.warning(
            "kernel {}: without this host's devices for GPUDirect Storage: what others give to "
            "its container is not understood: {!r}",
            preparation.plan.kernel_id,
            e,
        )
        return attrs.evolve(preparation, devices=(), host_mounts=())
    return attrs.evolve(
        preparation,
        devices=_free(preparation.devices, occupied),
        host_mounts=_free(preparation.host_mounts, occupied),
    )
