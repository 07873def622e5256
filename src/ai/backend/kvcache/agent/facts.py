"""Turns the agent's kernel configuration into what the planner reads."""

from __future__ import annotations

import platform
from collections.abc import Collection, Iterable, Mapping, Sequence
from decimal import Decimal
from pathlib import Path, PurePosixPath
from typing import Any

from ..folder.entries import Owner
from ..plan.session import Gpus, Image, Mount, Service, Session

#: Devices that are no accelerators: the agent's own, and ours.
_NO_ACCELERATORS = frozenset({"cpu", "mem", "kvcache"})

#: What the manager fills in when nobody asked (ai.backend.manager.defs).
_DEFAULT_SHARED_MEMORY_BYTES = 64 * 2**20


def _mounts(items: Iterable[Mapping[str, Any]]) -> tuple[Mount, ...]:
    return tuple(
        Mount(
            name=str(item["name"]),
            host_path=Path(item["host_path"]),
            container_path=PurePosixPath(item["kernel_path"]),
            writable=str(item.get("mount_perm", "ro")) != "ro",
            is_model=str(item.get("usage_mode", "general")) == "model",
        )
        for item in items
    )


def _service(kernel_config: Mapping[str, Any]) -> Service | None:
    internal = kernel_config.get("internal_data") or {}
    models: Sequence[Any] = (internal.get("model_definition") or {}).get("models") or ()
    service = models[0].get("service") if models else None
    if not service:
        return None
    command = service.get("start_command") or ()
    return Service(
        start_command=(command,) if isinstance(command, str) else tuple(command),
        model_path=PurePosixPath(models[0].get("model_path") or "/models"),
    )


def _identity(environ: Mapping[str, str], variable: str) -> int | None:
    """A uid or gid that the container's entry point switches to; a negative one means none."""
    value = environ.get(variable, "")
    return int(value) if value.isascii() and value.isdigit() else None


def _text(value: Any) -> str | None:
    return None if value is None else str(value)


def _shared_memory_bytes(kernel_config: Mapping[str, Any]) -> int | None:
    size = int((kernel_config.get("resource_opts") or {}).get("shmem") or 0)
    return None if size in (0, _DEFAULT_SHARED_MEMORY_BYTES) else size


def _memory_bytes(kernel_config: Mapping[str, Any]) -> int | None:
    """The container's limit."""
    size = (kernel_config.get("resource_slots") or {}).get("mem")
    try:
        return None if size is None else int(Decimal(size))
    except ArithmeticError:
        return None


def _gpu_model(names: Collection[str]) -> str:
    """The model of a session's GPUs. One that nobody says is taken for this node's alone."""
    if "" in names:
        return f"unknown, of {platform.node()}"
    return ", ".join(sorted(names))


def gpus_of(
    allocations: Mapping[Any, Mapping[Any, Mapping[Any, Decimal]]], computers: Mapping[Any, Any]
) -> Gpus | None:
    """The GPUs among the devices allotted to a kernel.

    Args:
        allocations: device name → slot name → device id → amount.
        computers: device name → the agent's computer context, which lists its devices.
    """
    whole = Decimal(1)
    for device_name, slots in allocations.items():
        if str(device_name) in _NO_ACCELERATORS:
            continue
        known = {d.device_id: d for d in computers[device_name].devices if d.memory_size}
        found = [
            # A slot named "shares" counts fractions of a device, others whole ones.
            (known[device_id], min(amount, whole) if str(slot).endswith(".shares") else whole)
            for slot, devices in slots.items()
            for device_id, amount in devices.items()
            if amount > 0 and device_id in known
        ]
        if found:
            # Only devices of accelerators have the attribute.
            models = {str(getattr(device, "model_name", None) or "") for device, _ in found}
            return Gpus(
                str(device_name),
                len(found),
                min(int(device.memory_size * share) for device, share in found),
                is_fraction=any(share < whole for _, share in found),
                model=_gpu_model(models),
            )
    return None


def session_of(
    kernel_id: str,
    kernel_config: Mapping[str, Any],
    environ: Mapping[str, str],
    gpus: Gpus | None,
) -> Session:
    """One kernel as the planner sees it. ``environ`` is copied: the agent goes on changing it."""
    image = kernel_config["image"]
    return Session(
        kernel_id=kernel_id,
        mounts=_mounts(kernel_config["mounts"]),
        environ=dict(environ),
        image=Image(str(image["canonical"]), dict(image["labels"])),
        gpus=gpus,
        service=_service(kernel_config),
        owner=Owner(_identity(environ, "LOCAL_USER_ID"), _identity(environ, "LOCAL_GROUP_ID")),
        shared_memory_bytes=_shared_memory_bytes(kernel_config),
        memory_bytes=_memory_bytes(kernel_config),
        session_id=_text(kernel_config.get("session_id")),
        user_id=_text(kernel_config.get("owner_user_id")),
        project_id=_text(kernel_config.get("owner_project_id")),
        resource_group=_text(kernel_config.get("scaling_group")),
        is_inference=str(kernel_config.get("session_type")) == "inference",
    )
