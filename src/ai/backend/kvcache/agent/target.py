"""Which sessions are to be measured, and where: what the agent and a session's plan say of it.

A session can write to its own plan, and is not to lead the agent anywhere else.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

import attrs
from ai.backend.logging import BraceStyleAdapter

from ..engine.adapter import Transport
from ..engine.loopback import session_loopback
from ..engine.select import TRANSPORTS
from ..folder.layout import namespace_directory
from ..plan.plan import PLAN_FILE
from ..sizes import MAX_BYTES
from .netns import InsidePage

log = BraceStyleAdapter(logging.getLogger(__spec__.name))


@attrs.frozen
class NamespaceOnHost:
    """Where a session's blocks lie."""

    folder: Path
    """The KV folder as a path of this host."""
    name: str
    storage_format: str
    """Of the files in it."""


@attrs.frozen
class Target:
    """One session to be measured."""

    container_id: str
    kernel_id: str
    metrics_url: str | None
    namespace: NamespaceOnHost | None
    folder_cap: int | None
    """Bytes, as the policy says it."""
    transport: Transport | None
    """As planned. None: by an adapter that is not known."""
    inside: Mapping[str, InsidePage]
    """Pages that are seen in the container only, by name."""
    slots: frozenset[tuple[str, str]]
    """The session's resource slots: name and amount."""


def _inside_pages(kernel_id: str, plan: Mapping[str, Any]) -> dict[str, InsidePage]:
    """What the plan names, as far as it is where the session was told to listen."""
    own = session_loopback(kernel_id)
    return {
        str(endpoint["name"]): InsidePage(own.host, endpoint["port"], "/metrics")
        for endpoint in plan.get("metrics") or ()
        if endpoint["host"] == own.host and endpoint["port"] in own.ports
    }


def _metrics_url(kernel: Any) -> str | None:
    """Where the model service's engine answers, as the agent published its port."""
    for port in kernel.service_ports or ():
        if port.get("is_inference") and port.get("host_ports") and port["host_ports"][0]:
            host = kernel.get("kernel_host") or "127.0.0.1"
            return f"http://{host}:{port['host_ports'][0]}/metrics"
    return None


def _namespace(kernel: Any, plan: Mapping[str, Any]) -> NamespaceOnHost | None:
    """The plan names the container's path; the kernel's mounts say where that lies on this host."""
    name = plan["namespace"]["name"]
    if not re.fullmatch(r"[0-9a-f]{32}", name):
        return None
    storage = PurePosixPath(plan["storage"])
    for mount in kernel.resource_spec.mounts:
        target = PurePosixPath(mount.target)
        if mount.source is not None and namespace_directory(target, name) == storage:
            storage_format = str(plan["namespace"]["description"]["storage_format"])
            return NamespaceOnHost(Path(mount.source), name, storage_format)
    return None


def _slots(kernel: Any) -> frozenset[tuple[str, str]]:
    slots = getattr(kernel.resource_spec, "slots", None) or {}
    return frozenset((str(name), str(amount)) for name, amount in slots.items())


def _folder_cap(plan: Mapping[str, Any]) -> int | None:
    cap = plan.get("folder_cap_bytes")
    return cap if type(cap) is int and 0 < cap <= MAX_BYTES else None


def target_of(
    kernel_id: str, container_id: str, kernel: Any, plan: Mapping[str, Any]
) -> Target | None:
    """One session; None for a plan that is none.

    Args:
        kernel: the agent's own object.
    """
    try:
        return Target(
            container_id=container_id,
            kernel_id=kernel_id,
            metrics_url=_metrics_url(kernel),
            namespace=_namespace(kernel, plan),
            folder_cap=_folder_cap(plan),
            transport=TRANSPORTS.get(plan["engine"]),
            inside=_inside_pages(kernel_id, plan),
            slots=_slots(kernel),
        )
    except (AttributeError, LookupError, TypeError, ValueError) as e:
        log.debug("kernel {}: its {} is not understood: {!r}", kernel_id, PLAN_FILE, e)
        return None
