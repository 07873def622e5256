"""How the client is told which manager to ask."""

from __future__ import annotations

import os
from pathlib import Path


def client_is_configured() -> bool:
    """Whether somebody said which manager to ask; by default it would be a public one."""
    config = Path.home() / ".backend.ai" / "config.toml"
    return bool(os.environ.get("BACKEND_ENDPOINT")) or config.is_file()
