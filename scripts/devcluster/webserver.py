"""What the web server serves: the WebUI that it carries, with this repository's page in it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from . import environments
from .command import Argv, run
from .console import step
from .settings import VENV, WEB_STATIC


def prepare() -> None:
    """Makes the folder anew. It is this clone's own, so that no other sees the page."""
    packaged = environments.site_packages(environments.backendai()) / "ai/backend/web/static"
    with step("Preparing the WebUI"):
        shutil.rmtree(WEB_STATIC, ignore_errors=True)
        ignored = shutil.ignore_patterns("*.map")
        shutil.copytree(packaged, WEB_STATIC, ignore=ignored, copy_function=_link_or_copy)
        python: Argv = [VENV / "bin" / "python", "-m", "ai.backend.cli"]
        run([*python, "kvcache", "webui", "install", WEB_STATIC])


def _link_or_copy(source: str, target: str) -> None:
    """The web server refuses symbolic links out of its folder, and another disk hard links."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, Path(target))
