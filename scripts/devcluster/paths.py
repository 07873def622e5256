"""Where things lie: the clone, its own state, and the cache that all clones share."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

CLONE = Path(__file__).resolve().parents[2]

#: Everything that one clone's cluster writes: configuration, data, logs, process ids.
STATE = CLONE / ".cluster"

#: Downloads, environments, image inputs and the prepared database, shared by all clones.
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "backendai-kvcache"


def digest_of(*parts: str | bytes | Path) -> str:
    """First 16 hex digits of the SHA-256 of texts and files' contents.

    Names cache entries by what they are made from, so that a changed input makes a new entry.
    """
    digest = hashlib.sha256()
    for part in parts:
        content = part.read_bytes() if isinstance(part, Path) else part
        if isinstance(content, str):
            content = content.encode()
        digest.update(len(content).to_bytes(8, "big"))
        digest.update(content)
    return digest.hexdigest()[:16]
