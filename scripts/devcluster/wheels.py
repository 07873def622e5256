"""Single wheels, unpacked and kept in the shared cache: engines of other versions to ask."""

from __future__ import annotations

import zipfile
from pathlib import Path

from . import cache
from .command import run
from .image import WHEEL_TARGET
from .paths import CACHE


def unpacked_wheel(python: Path, requirement: str) -> Path:
    """A package's own files, without what it requires.

    Args:
        python: an interpreter that has pip.
        requirement: such as ``lmcache==0.4.3``.
    """

    def download(target: Path) -> None:
        folder = target.parent / "download"
        download_only = ["-m", "pip", "download", "--quiet", "--no-deps", *WHEEL_TARGET]
        run([python, *download_only, "--dest", folder, requirement])
        (wheel,) = folder.glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(target)

    target = CACHE / "wheels" / requirement.replace("==", "-")
    return cache.entry(target, f"The wheel of {requirement}", download)
