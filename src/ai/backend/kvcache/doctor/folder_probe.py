"""Tries a folder, in a process of its own.

A file server that does not answer may hold whoever asks it, beyond any signal. So
``python -m ai.backend.kvcache.doctor.folder_probe FOLDER`` does the asking, and prints a JSON
object. It writes one small file of its own and removes it.
"""

from __future__ import annotations

import errno
import json
import mmap
import os
import secrets
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

#: A multiple of every device's block size.
_BLOCK = 64 * 1024


def _name_of(error: OSError) -> str:
    return errno.errorcode.get(error.errno or 0, "unknown")


def _pattern() -> mmap.mmap:
    """Bytes at an address that O_DIRECT takes."""
    buffer = mmap.mmap(-1, _BLOCK)
    buffer.write(secrets.token_bytes(_BLOCK))
    return buffer


def _write_and_read(path: Path, flags: int) -> str | None:
    """Writes a new file and reads it again.

    Returns:
        None, or the name of the error, or what else is wrong.
    """
    written, read = _pattern(), mmap.mmap(-1, _BLOCK)
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | flags, 0o600)
        try:
            if os.pwritev(descriptor, [written], 0) < _BLOCK:
                return "no room"
            os.fsync(descriptor)
            os.preadv(descriptor, [read], 0)
        finally:
            os.close(descriptor)
            path.unlink()
    except OSError as e:
        # Some file systems make the file and then refuse the flag.
        with suppress(OSError):
            path.unlink()
        return _name_of(e)
    return None if read[:] == written[:] else "other bytes are read"


def probe(folder: Path) -> dict[str, Any]:
    """What can be done in a folder.

    Returns:
        ``path`` without links, ``missing`` (why it is no folder), ``write`` and ``direct`` (why
        not; None where it can be done), ``free`` and ``total`` in bytes.
    """
    try:
        path = folder.resolve(strict=True)
        if not path.is_dir():
            return {"missing": "ENOTDIR"}
        space = os.statvfs(path)
    except OSError as e:
        return {"missing": _name_of(e)}
    name = f".kvcache-doctor-{secrets.token_hex(8)}"
    write = _write_and_read(path / name, 0)
    return {
        "path": str(path),
        "missing": None,
        "write": write,
        "direct": _write_and_read(path / name, os.O_DIRECT) if write is None else write,
        "free": space.f_bavail * space.f_frsize,
        "total": space.f_blocks * space.f_frsize,
    }


if __name__ == "__main__":
    print(json.dumps(probe(Path(sys.argv[1]))))
