"""Reads pages that are seen inside of a container only, from its network namespace.

A socket belongs to the namespace that it was made in. So a thread enters the container's for as
long as that takes, goes back, and speaks from where it was. No program runs in the container.
"""

from __future__ import annotations

import http.client
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import attrs

#: Where the calling thread's own namespace is found.
_OWN = "/proc/thread-self/ns/net"

_PART_BYTES = 64 * 2**10


@attrs.frozen
class InsidePage:
    """A page of something that listens on a container's own loopback addresses."""

    host: str
    port: int
    path: str


@contextmanager
def _inside(pid: int) -> Iterator[None]:
    """The network namespace of a process, for the calling thread alone.

    Raises:
        OSError: there is no such process, or the agent may not enter.
    """
    with open(_OWN, "rb") as own, open(f"/proc/{pid}/ns/net", "rb") as other:
        os.setns(other.fileno(), os.CLONE_NEWNET)
        try:
            yield
        finally:
            os.setns(own.fileno(), os.CLONE_NEWNET)


class _Socket(socket.socket):
    """Takes so long and so much in all, in however small parts it comes: http.client reads lines,
    and more lines, with no end of its own.
    """

    def __init__(self, deadline: float, max_bytes: int) -> None:
        super().__init__(socket.AF_INET, socket.SOCK_STREAM)
        self._deadline = deadline
        self._bytes_left = max_bytes

    def hurry(self) -> None:
        """Lets the next step take no longer than there is time.

        Raises:
            TimeoutError: there is none.
        """
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self.settimeout(left)

    def recv_into(self, buffer: Any, nbytes: int = 0, flags: int = 0) -> int:
        self.hurry()
        received = super().recv_into(buffer, nbytes, flags)
        self._bytes_left -= received
        if self._bytes_left < 0:
            raise ValueError("the page has too many bytes")
        return received


class _Connection(http.client.HTTPConnection):
    """HTTP over a socket that was made inside."""

    def __init__(self, pid: int, page: InsidePage, deadline: float, max_bytes: int) -> None:
        super().__init__(page.host, page.port)
        self._pid = pid
        self._limits = deadline, max_bytes

    def connect(self) -> None:
        with _inside(self._pid):
            self.sock = _Socket(*self._limits)
        self.sock.hurry()
        self.sock.connect((self.host, self.port))


def _content(response: http.client.HTTPResponse) -> bytes:
    # Not in one go: http.client then takes as much memory as the answer says it has.
    content = bytearray()
    while part := response.read1(_PART_BYTES):
        content += part
    if response.length:
        raise ValueError(f"the page ends {response.length} bytes before its end")
    return bytes(content)


def read_inside(pid: int, page: InsidePage, timeout: float, max_bytes: int) -> str:
    """One page. Blocks, and so is called in a thread, of those that do nothing else: should one not
    be able to go back, it stays in a namespace that is not the agent's.

    Args:
        pid: of a process in the container, as the host counts.
        page: an IPv4 address; names are not looked up.
        timeout: seconds for all of it.
        max_bytes: of the whole answer: what answers is the user's container.

    Raises:
        OSError: nothing answers there, or not in time.
        ValueError: what answers is no page, or has too many bytes.
    """
    connection = _Connection(pid, page, time.monotonic() + timeout, max_bytes)
    try:
        connection.request("GET", page.path)
        response = connection.getresponse()
        if response.status != http.client.OK:
            raise ValueError(f"{page.path} answers with status {response.status}")
        return _content(response).decode()
    except http.client.HTTPException as e:
        raise ValueError(f"{page.path} is no page: {e!r}") from e
    finally:
        connection.close()
