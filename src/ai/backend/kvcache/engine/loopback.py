"""Where what runs beside an engine listens, so that sessions that share a network do not meet."""

from __future__ import annotations

import attrs
import xxhash

#: Pairs of ports below the range from which Linux takes ports for outgoing connections.
_FIRST_PORT, _PORT_PAIRS = 20_000, 6_000


@attrs.frozen
class Loopback:
    """An address that is reached from the same host only, and two ports of it."""

    host: str
    ports: tuple[int, int]


def session_loopback(session: str) -> Loopback:
    """One session's own: all of 127.0.0.0/8 is loopback, so two sessions meet once in 10¹⁰ pairs.

    The same whenever it is asked.
    """
    digest = xxhash.xxh3_64_intdigest(session.encode())
    rest, pair = divmod(digest, _PORT_PAIRS)
    # Neither 127.0.x.x, where others listen, nor a broadcast's last number.
    host = f"127.{rest % 254 + 1}.{rest // 254 % 256}.{rest // 65_024 % 254 + 1}"
    first = _FIRST_PORT + 2 * pair
    return Loopback(host, (first, first + 1))
