"""Container images that sessions run in, and their registration with the manager."""

from __future__ import annotations

from . import docker
from .command import Argv, run
from .console import step
from .paths import STATE, digest_of
from .rootfs import debian_rootfs
from .settings import CONFIG, REGISTRY_PROJECT, VENV

SMALL = f"{REGISTRY_PROJECT}/python-small:3.11-debian12"
_SMALL_PACKAGES = ("ca-certificates", "procps", "python3")

#: Names what an image was made from, so that a changed recipe makes it anew.
_MADE_FROM = "backendai-kvcache.made-from"
_STAMP = STATE / "images-registered"


def labels(*, runtime_path: str, minimum_memory: str, **more: str) -> dict[str, str]:
    """What Backend.AI wants to read on an image."""
    return {
        "ai.backend.kernelspec": "1",
        "ai.backend.role": "COMPUTE",
        "ai.backend.envs.corecount": "OPENBLAS_NUM_THREADS,OMP_NUM_THREADS,NPROC",
        "ai.backend.features": "batch query uid-match user-input",
        # Debian 12's C library is no older than this one's, and Backend.AI has no "debian".
        "ai.backend.base-distro": "ubuntu22.04",
        "ai.backend.resource.min.cpu": "1",
        "ai.backend.resource.min.mem": minimum_memory,
        "ai.backend.runtime-type": "python",
        "ai.backend.runtime-path": runtime_path,
        **more,
    }


def ensure_small() -> None:
    """An image of 150 MB with nothing but Python, for ordinary sessions."""
    rootfs = debian_rootfs(_SMALL_PACKAGES)
    wanted = labels(runtime_path="/usr/bin/python3", minimum_memory="64m")
    wanted["ai.backend.service-ports"] = "ipython:pty:3000"
    # No engine is in it. What sessions get of the plugin is seen all the same, and with these
    # versions every way of vLLM's is right, with GPUs and without.
    wanted["ai.backend.kvcache.engine-version"] = "0.20.2"
    wanted["ai.backend.kvcache.lmcache-version"] = "0.4.6"
    wanted[_MADE_FROM] = digest_of(rootfs.name, *sorted(f"{k}={v}" for k, v in wanted.items()))
    present = docker.labels_of(SMALL)
    if present is None or present.get(_MADE_FROM) != wanted[_MADE_FROM]:
        with step(f"Importing the image {SMALL}"):
            docker.import_image(rootfs, SMALL, wanted)


def register() -> None:
    """Tells the manager about the machine's images, if they have changed since it was told."""
    present = digest_of(*docker.image_ids(f"{REGISTRY_PROJECT}/"))
    if _STAMP.exists() and _STAMP.read_text() == present:
        return
    with step("Registering images with the manager"):
        manager: Argv = [VENV / "bin" / "python", "-m", "ai.backend.cli", "mgr"]
        run([*manager, "-f", CONFIG / "manager.toml", "image", "rescan", "local"], cwd=CONFIG)
        _STAMP.write_text(present)
