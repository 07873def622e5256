"""The Docker daemon, and what this cluster's agent leaves in it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from .command import run, succeeds
from .settings import AGENT_ID

_OWNER_LABEL = "ai.backend.owner"


def answers() -> bool:
    return succeeds(["docker", "info"])


def import_image(rootfs: Path, reference: str, labels: dict[str, str]) -> None:
    """Makes an image of one layer out of a root file system."""
    changes = [f"--change=LABEL {json.dumps(key)}={json.dumps(labels[key])}" for key in labels]
    run(["docker", "import", *changes, rootfs, reference])


def labels_of(reference: str) -> dict[str, str] | None:
    """An image's labels; None if there is no such image."""
    if not succeeds(["docker", "image", "inspect", reference]):
        return None
    details: list[dict[str, Any]] = json.loads(run(["docker", "image", "inspect", reference]))
    labels: dict[str, str] = details[0]["Config"].get("Labels") or {}
    return labels


def image_ids(repository_prefix: str) -> list[str]:
    """References with their ids, of all images whose name starts with the prefix."""
    listing = run(["docker", "images", "--format={{.Repository}}:{{.Tag}} {{.ID}}", "--no-trunc"])
    return sorted(line for line in listing.splitlines() if line.startswith(repository_prefix))


def own_containers() -> list[str]:
    """Containers of this clone's agent: its kernels, and its relay of sockets."""
    kernels = ["docker", "ps", "--all", "--quiet", f"--filter=label={_OWNER_LABEL}={AGENT_ID}"]
    relays = ["docker", "ps", "--all", "--quiet", f"--filter=name=^backendai-.*\\.{AGENT_ID}$"]
    return sorted({*run(kernels).split(), *run(relays).split()})


def remove_own_containers() -> int:
    containers = own_containers()
    if containers:
        run(["docker", "rm", "--force", "--volumes", *containers])
    return len(containers)
