"""Reads JSON files of a model's folder, which anybody may have written."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..beneath import open_file
from ..errors import ModelError

#: Published config.json files are a few KiB; the largest seen (quantization maps) a few MiB.
MAX_JSON_BYTES = 16 * 2**20


def read_json(root: Path, path: Path) -> Mapping[str, Any]:
    """Reads a JSON object from a regular file of bounded size.

    Args:
        root: the mounted folder that the file must lie in, links followed.
        path: the file.

    Raises:
        ModelError: not there, not a regular file, too large, not JSON, or not an object.
    """
    try:
        fd = open_file(root, path)
    except OSError as e:
        raise ModelError(f"{path.name} of the model cannot be read: {e.strerror}") from e
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise ModelError(f"{path.name} of the model is not a regular file")
        if status.st_size > MAX_JSON_BYTES:
            raise ModelError(
                f"{path.name} of the model has {status.st_size} bytes; "
                f"more than {MAX_JSON_BYTES} cannot be a model's description"
            )
        with os.fdopen(fd, "rb", closefd=False) as file:
            content = json.loads(file.read(MAX_JSON_BYTES))
    except OSError as e:
        raise ModelError(f"{path.name} of the model cannot be read: {e.strerror}") from e
    except (ValueError, RecursionError) as e:
        raise ModelError(f"{path.name} of the model is not valid JSON: {e}") from e
    finally:
        os.close(fd)
    if not isinstance(content, dict):
        raise ModelError(f"{path.name} of the model holds no JSON object")
    return content
