"""Which versions are installed here, and whether they go together."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

from packaging.version import InvalidVersion, Version

from .. import __version__
from .check import Finding, Role, failed, ok, warning

if TYPE_CHECKING:
    from .host import Host

#: The first Backend.AI that the plugin was made for.
OLDEST = Version("26.4.16")

#: Of one release each.
_PACKAGES = ("agent", "manager", "client", "storage-proxy", "common")


def installed() -> dict[str, str]:
    """Name without ``backend.ai-`` → version, of what this Python has."""
    found: dict[str, str] = {}
    for name in _PACKAGES:
        try:
            found[name] = version(f"backend.ai-{name}")
        except PackageNotFoundError:
            continue
    return found


def _is_too_old(text: str) -> bool:
    try:
        return Version(text) < OLDEST
    except InvalidVersion:
        return False


def judge_versions(packages: Mapping[str, str], roles: frozenset[Role], python: str) -> Finding:
    """Whether what a host of these roles needs is there, and new enough."""
    said = ", ".join((
        f"plugin {__version__}",
        f"Python {python}",
        *(f"{name} {text}" for name, text in packages.items()),
    ))
    missing = sorted(f"backend.ai-{role}" for role in roles if role not in packages)
    if missing:
        return failed(
            f"{said}; this Python has no {', '.join(missing)}",
            "run this with the Python that has it, or install it there, or say --role",
        )
    if old := [name for name, text in packages.items() if _is_too_old(text)]:
        return failed(
            f"{said}; {', '.join(old)} is older than {OLDEST}", f"upgrade Backend.AI to {OLDEST}"
        )
    if len(set(packages.values())) > 1:
        return warning(
            f"{said}; Backend.AI's packages are of different releases",
            "install one release of all of them",
        )
    return ok(said)


def look_at_versions(host: Host) -> Finding:
    return judge_versions(installed(), host.roles, platform.python_version())
