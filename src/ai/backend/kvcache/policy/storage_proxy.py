"""A storage proxy as etcd describes it, below ``volumes/proxies/``."""

from __future__ import annotations

from typing import Any

import attrs
import trafaret as t

#: Where a proxy looks for its secret.
TOKEN_HEADER = "X-BackendAI-Storage-Auth-Token"


@attrs.frozen
class StorageProxy:
    """What is needed to ask it."""

    name: str
    address: str
    secret: str = attrs.field(repr=False)
    verify: bool = True
    """Whether its certificate is checked."""


_entry = t.Dict({
    t.Key("manager_api", to_name="address"): t.String(),
    t.Key("secret"): t.String(),
    # As the manager takes it.
    t.Key("ssl_verify", to_name="verify", default=True): t.ToBool(),
}).ignore_extra("*")


def read_storage_proxy(name: str, said: Any) -> StorageProxy | None:
    """What etcd says of a proxy, as a nested mapping of strings.

    Returns:
        None where an address or a secret is missing, or something cannot be understood. What it
            is, is not said: it may be the secret.
    """
    try:
        return StorageProxy(name, **_entry.check(dict(said)))
    except (t.DataError, TypeError, ValueError):
        return None
