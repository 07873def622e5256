"""Asking servers, with an end to every wait."""

from __future__ import annotations

import asyncio
import errno
import json
import socket
import ssl
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import attrs

from ..errors import KVCacheError

#: For one server. Those of a site answer within milliseconds, or seconds when they are busy.
ANSWER_SECONDS = 10.0

#: No answer that is wanted here is longer.
_MAX_BYTES = 2**20


#: Of aiohttp's own, by their names, since it is not installed everywhere.
_REASONS: Mapping[str, str] = {
    "ClientConnectorDNSError": "its name is not known here",
    "InvalidUrlClientError": "it is no address",
    "InvalidURL": "it is no address",
}


class UnreachableError(KVCacheError):
    """A server gave no answer. The message says why in a few words, and holds nothing secret."""


@attrs.frozen
class Answer:
    """What a web server said."""

    status: int
    body: Any
    """Of JSON; None where it is none."""


def public(address: str) -> str:
    """An address without the user and password that may stand in it."""
    parts = urlsplit(address)
    if "@" not in parts.netloc:
        return address
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


def in_time() -> asyncio.Timeout:
    """A block of code that has as long as a server has for its answer."""
    return asyncio.timeout(ANSWER_SECONDS)


def reason_of(error: BaseException) -> str:
    """Why a server gave no answer, in words that hold nothing secret."""
    if (reason := _REASONS.get(type(error).__name__)) is not None:
        return reason
    match getattr(error, "os_error", error):
        case TimeoutError():
            return f"no answer within {ANSWER_SECONDS:.0f} s"
        case socket.gaierror():
            return "its name is not known here"
        case ssl.SSLError(reason=reason):
            return f"TLS: {reason or 'not spoken there'}"
        case ConnectionRefusedError():
            return "nothing listens there"
        case OSError(errno=errno.EHOSTUNREACH | errno.ENETUNREACH):
            return "there is no way to it in the network"
        case OSError(errno=int(number)):
            return errno.errorcode.get(number, f"error {number}")
        case _:
            return type(error).__name__


async def connect(host: str, port: int) -> None:
    """Whether anything listens there.

    Raises:
        UnreachableError: nothing does.
    """
    try:
        async with in_time():
            _, writer = await asyncio.open_connection(host, port)
            writer.close()
    except (OSError, TimeoutError) as e:
        raise UnreachableError(reason_of(e)) from e


async def get_json(
    url: str, headers: Mapping[str, str] | None = None, *, verify: bool = True
) -> Answer:
    """A web server's answer.

    Args:
        verify: whether its certificate is looked at.

    Raises:
        UnreachableError: there is none.
    """
    import aiohttp

    timeout = aiohttp.ClientTimeout(total=ANSWER_SECONDS)
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout) as http,
            http.get(url, headers=headers, ssl=verify) as response,
        ):
            body = bytearray()
            async for part in response.content.iter_any():
                body += part
                if len(body) > _MAX_BYTES:
                    raise UnreachableError("its answer has no end")
            return Answer(response.status, _json_of(bytes(body)))
    except (aiohttp.ClientError, OSError, TimeoutError) as e:
        raise UnreachableError(reason_of(e)) from e


def _json_of(body: bytes) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None
