"""Ways to find out whether a program works."""

from __future__ import annotations

import http.client
import socket
from collections.abc import Callable

from .settings import HOST

_TIMEOUT_SECONDS = 5.0


def http_answers(port: int, path: str = "/") -> Callable[[], bool]:
    """Whether a web server answers, with anything but an error of its own (5xx)."""

    def probe() -> bool:
        connection = http.client.HTTPConnection(HOST, port, timeout=_TIMEOUT_SECONDS)
        try:
            connection.request("GET", path)
            return connection.getresponse().status < 500
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    return probe


def redis_answers(port: int) -> Callable[[], bool]:
    def probe() -> bool:
        try:
            with socket.create_connection((HOST, port), timeout=_TIMEOUT_SECONDS) as redis:
                redis.sendall(b"PING\r\n")
                return redis.recv(16).startswith(b"+PONG")
        except OSError:
            return False

    return probe


def port_taken(port: int) -> bool:
    try:
        with socket.create_connection((HOST, port), timeout=_TIMEOUT_SECONDS):
            return True
    except OSError:
        return False
