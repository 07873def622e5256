"""Entries of the shared cache: either whole or absent, never half made."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from .console import step


def entry(target: Path, title: str, make: Callable[[Path], None]) -> Path:
    """Returns `target`, made first if the cache does not hold it.

    `make` gets a path that does not exist yet, in the same folder, and leaves a file or a folder
    there. It is renamed into place only when it is whole, so an interrupted run leaves nothing
    that a later one would take for good; its leftovers are removed by name here.
    """
    if target.exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    workshop = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    try:
        with step(title):
            made = workshop / target.name
            make(made)
            if not target.exists():
                made.rename(target)
    finally:
        shutil.rmtree(workshop, ignore_errors=True)
    return target
