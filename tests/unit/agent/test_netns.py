"""A real network namespace with a server on an address that only it has."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from ai.backend.kvcache.agent.netns import InsidePage, read_inside

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0, reason="only root makes and enters network namespaces"
)

HOST = "127.48.99.143"

#: Brings the loopback device up, and answers each path in its own way.
SERVER = """
import fcntl, http.server, socket, struct, sys, time
plain = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
request = struct.pack("16sh", b"lo", 0x1)
fcntl.ioctl(plain, 0x8914, request)
CHUNKS = b"Transfer-Encoding: chunked\\r\\n\\r\\n"
DRIPS = {"/drips": b"\\r\\n", "/drips-head": b"X-", "/drips-chunk": CHUNKS}
ENDLESS = {"/endless-head": b"", "/endless-trailer": CHUNKS + b"1\\r\\nx\\r\\n0\\r\\n"}
class Pages(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        if self.path == "/hangs":
            time.sleep(60)
        if self.path in DRIPS:
            self.wfile.write(b"HTTP/1.0 200 OK\\r\\n" + DRIPS[self.path])
            for _ in range(600):
                self.wfile.write(b"x")
                time.sleep(0.1)
        if self.path in ENDLESS:
            self.wfile.write(b"HTTP/1.1 200 OK\\r\\n" + ENDLESS[self.path])
            while True:
                self.wfile.write(b"X-Line: x\\r\\n")
        if self.path == "/cut":
            self.send_response(200)
            self.send_header("Content-Length", "2000")
            self.end_headers()
            self.wfile.write(b"x" * 200)
            return
        content = b"x" * 2000 if self.path == "/large" else b"answered from inside\\n"
        self.send_response(404 if self.path == "/nothing" else 200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)
    def log_message(self, *arguments):
        pass
server = http.server.ThreadingHTTPServer((sys.argv[1], 0), Pages)
print(server.server_address[1], flush=True)
server.serve_forever()
"""

type Page = Callable[[str], InsidePage]


@pytest.fixture(scope="module")
def inside() -> Iterator[tuple[int, int]]:
    """(a process in a namespace of its own, the port that it listens on)."""
    with subprocess.Popen(
        ["unshare", "--net", sys.executable, "-c", SERVER, HOST], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        try:
            yield process.pid, int(process.stdout.readline())
        finally:
            process.kill()


def read(inside: tuple[int, int], path: str, *, timeout: float = 5.0, limit: int = 1000) -> str:
    pid, port = inside
    return read_inside(pid, InsidePage(HOST, port, path), timeout, limit)


def test_page(inside: tuple[int, int]) -> None:
    assert read(inside, "/metrics") == "answered from inside\n"


def test_it_is_not_seen_from_outside(inside: tuple[int, int]) -> None:
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((HOST, inside[1]), timeout=2)


def test_thread_is_back_afterwards(inside: tuple[int, int]) -> None:
    own = os.readlink("/proc/thread-self/ns/net")
    for path in ("/metrics", "/nothing"):
        with contextlib.suppress(ValueError):
            read(inside, path)
        assert os.readlink("/proc/thread-self/ns/net") == own


def test_other_threads_stay_where_they_are(inside: tuple[int, int]) -> None:
    seen: set[str] = set()
    ended = threading.Event()

    def watch() -> None:
        while not ended.is_set():
            seen.add(os.readlink("/proc/thread-self/ns/net"))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        for _ in range(50):
            read(inside, "/metrics")
    finally:
        ended.set()
        watcher.join()
    assert seen == {os.readlink("/proc/self/ns/net")}


@pytest.mark.parametrize(
    ("path", "error"),
    [
        ("/nothing", "status 404"),
        ("/large", "too many bytes"),
        ("/cut", "1800 bytes before its end"),
        ("/endless-head", "too many bytes"),
        ("/endless-trailer", "too many bytes"),
    ],
)
def test_no_page(inside: tuple[int, int], path: str, error: str) -> None:
    with pytest.raises(ValueError, match=error):
        read(inside, path)


@pytest.mark.parametrize("path", ["/hangs", "/drips", "/drips-head", "/drips-chunk"])
def test_page_that_takes_too_long(inside: tuple[int, int], path: str) -> None:
    began = time.monotonic()
    with pytest.raises(TimeoutError):
        read(inside, path, timeout=0.3)
    # Far from the minute that the server takes.
    assert time.monotonic() - began < 30


def test_nobody_listens(inside: tuple[int, int]) -> None:
    with pytest.raises(ConnectionRefusedError):
        read_inside(inside[0], InsidePage(HOST, 1, "/metrics"), 2.0, 1000)


def test_process_that_is_gone() -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    with pytest.raises((FileNotFoundError, ProcessLookupError)):
        read_inside(gone.pid, InsidePage(HOST, 1, "/metrics"), 2.0, 1000)
