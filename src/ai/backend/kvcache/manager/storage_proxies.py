"""Storage proxies, asked with the manager's own client and settings."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import yarl
from ai.backend.manager.clients.storage_proxy.base import (
    StorageProxyClientArgs,
    StorageProxyHTTPClient,
)
from ai.backend.manager.clients.storage_proxy.manager_facing_client import (
    StorageProxyManagerFacingClient,
)
from ai.backend.manager.config.unified import VolumeProxyConfig


@asynccontextmanager
async def storage_client(
    proxy: VolumeProxyConfig,
) -> AsyncIterator[StorageProxyManagerFacingClient]:
    """A client of one storage proxy.

    Args:
        proxy: one of the manager's ``volumes.proxies``.
    """
    connector = aiohttp.TCPConnector(ssl=proxy.ssl_verify)
    async with aiohttp.ClientSession(connector=connector) as session:
        arguments = StorageProxyClientArgs(yarl.URL(proxy.manager_api), proxy.secret)
        yield StorageProxyManagerFacingClient(
            StorageProxyHTTPClient(session, arguments), timeout_config=proxy.timeouts
        )
