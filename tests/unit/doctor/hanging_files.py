"""Real file systems to look at, and one that hangs like one whose server is gone, by FUSE."""

from __future__ import annotations

import ctypes
import os
import select
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_LIBC = ctypes.CDLL(None, use_errno=True)
_READ_ONLY = 1
_DETACH = 2

#: len, opcode, unique, and what does not matter here.
_IN_HEADER = struct.Struct("=IIQ24x")
#: len, error, unique.
_OUT_HEADER = struct.Struct("=IiQ")
#: fuse_init_out of protocol 7.31: version, read-ahead, flags, limits.
_INIT = struct.pack("=IIIIHHIIHHI7I", 7, 31, 0, 0, 8, 8, 4096, 1, 1, 0, 0, *([0] * 7))
_OPCODE_OF_INIT = 26
_LARGEST_REQUEST = 2**17


def can_mount() -> bool:
    return os.geteuid() == 0 and os.access("/dev/fuse", os.R_OK | os.W_OK)


def _serve(server: int, end: int) -> None:
    """Agrees on the protocol, takes whatever is asked, and never answers again.

    A process whose request was taken can no longer be killed.
    """
    while server in select.select([server, end], [], [])[0]:
        request = os.read(server, _LARGEST_REQUEST)
        _, opcode, unique = _IN_HEADER.unpack_from(request)
        if opcode == _OPCODE_OF_INIT:
            length = _OUT_HEADER.size + len(_INIT)
            os.write(server, _OUT_HEADER.pack(length, 0, unique) + _INIT)


def mount(point: Path, kind: str, options: str, *, read_only: bool = False) -> None:
    """Mounts a file system that is not on a disk.

    Raises:
        OSError: the kernel refuses.
    """
    flags = _READ_ONLY if read_only else 0
    if _LIBC.mount(b"test", bytes(point), kind.encode(), flags, options.encode()) != 0:
        raise OSError(ctypes.get_errno(), f"mount {kind}")


def unmount(point: Path) -> None:
    """At once, whoever is in it."""
    _LIBC.umount2(bytes(point), _DETACH)


@contextmanager
def hanging_file_system(point: Path) -> Iterator[None]:
    """Mounts it, and takes it away again, which sets free whoever hangs in it."""
    server = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    end, ending = os.pipe2(os.O_CLOEXEC)
    mount(point, "fuse", f"fd={server},rootmode=40000,user_id=0,group_id=0")
    thread = threading.Thread(target=_serve, args=(server, end), daemon=True)
    thread.start()
    try:
        yield
    finally:
        unmount(point)
        os.close(ending)
        thread.join()
        # With its last descriptor the file system ends, and every request with an error.
        os.close(server)
        os.close(end)
