"""Requests' bodies: JSON of bounded size, checked."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import trafaret as t
from aiohttp import web

from .. import strict_json
from .errors import BodyTooLargeError, InvalidRequestError

#: A policy has 1 MiB at most, a model's description a few KiB.
MAX_BODY_BYTES = 2 * 2**20

_CHUNK_BYTES = 2**16


async def read_body(request: web.Request, check: t.Trafaret) -> Any:
    """What a request's body says, as the check returns it.

    Raises:
        BodyTooLargeError: it has more than MAX_BODY_BYTES.
        InvalidRequestError: it is no JSON, or not what the check wants; the message says what.
    """
    content = await _content(request)
    try:
        value = strict_json.parse(content)
    except ValueError as e:
        raise InvalidRequestError(f"the body is no usable JSON: {e}") from e
    try:
        return check.check(value)
    except t.DataError as e:
        raise InvalidRequestError("; ".join(_reasons(e.as_dict(), ""))) from e


async def _content(request: web.Request) -> bytes:
    content = bytearray()
    try:
        async for chunk in request.content.iter_chunked(_CHUNK_BYTES):
            content += chunk
            if len(content) > MAX_BODY_BYTES:
                raise BodyTooLargeError(
                    f"more than {MAX_BODY_BYTES} bytes",
                    max_size=MAX_BODY_BYTES,
                    actual_size=len(content),
                )
    except web.RequestPayloadError as e:
        raise InvalidRequestError("the body is not compressed as its headers say") from e
    return bytes(content)


def _reasons(error: Any, path: str) -> Iterator[str]:
    if not isinstance(error, dict):
        yield f"{path or 'the body'}: {error}"
    elif all(isinstance(name, int) for name in error):
        # Of alternatives, none of which fits.
        yield f"{path}: {', and '.join(map(str, error.values()))}"
    else:
        for name, inner in error.items():
            yield from _reasons(inner, f"{path}.{name}" if path else name)
