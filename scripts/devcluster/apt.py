"""Debian packages that the cluster stands on."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence

from .command import run, succeeds
from .console import SetupError, step

PACKAGES = (
    "debootstrap",
    "docker.io",
    "etcd-client",
    "etcd-server",
    "jq",
    "postgresql",
    "prometheus",
    "redis-server",
)

#: What the browser's tests need: their browser, and letters for Korean.
BROWSER = ("chromium", "fonts-nanum")

#: RUNLEVEL keeps the packages' own services from being started: the cluster runs its own.
_QUIET = {"DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}


def ensure(packages: Sequence[str] = PACKAGES) -> None:
    """Installs the packages that are missing, and touches nothing if none is."""
    if shutil.which("dpkg-query") is None:
        raise SetupError(
            "This machine is not Debian (no dpkg-query). The cluster needs Debian 12 or later, "
            f"with these packages: {' '.join(packages)}."
        )
    missing = [package for package in packages if not _installed(package)]
    if not missing:
        return
    require_root()
    with step(f"Installing Debian packages: {' '.join(missing)}"):
        install = ["apt-get", "install", "--yes", "--no-install-recommends", *missing]
        try:
            run(install, env=_QUIET)
        except SetupError:
            # The package lists of a fresh machine are empty or old.
            run(["apt-get", "update"], env=_QUIET)
            run(install, env=_QUIET)


def require_root() -> None:
    """Backend.AI's agent needs root, for containers and control groups."""
    if os.geteuid() != 0:
        raise SetupError("This must run as root: `sudo ./scripts/cluster ...`.")


def _installed(package: str) -> bool:
    if not succeeds(["dpkg-query", "--show", package]):
        return False
    status = subprocess.run(
        ["dpkg-query", "--show", "--showformat=${db:Status-Status}", package],
        capture_output=True,
        text=True,
    )
    return status.stdout == "installed"
