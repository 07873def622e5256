"""The folders of projects that only agents reach, made and removed at their storage proxies.

The manager keeps no VFolder for them. Whatever Backend.AI lets the members or the admins of a
project or domain do with VFolders (its file API does not even respect a VFolder's ``ro``), there
is none that they could do it with. The proxy makes the quota scope together with the folder.
"""

from __future__ import annotations

import asyncio

from ai.backend.common.exception import BackendAIError
from ai.backend.manager.clients.storage_proxy.manager_facing_client import (
    StorageProxyManagerFacingClient,
)
from ai.backend.manager.config.unified import VolumesConfig
from ai.backend.manager.errors.common import ServiceUnavailable
from ai.backend.manager.errors.storage import (
    QuotaScopeNotFoundError,
    VFolderBadRequest,
    VFolderGone,
    VFolderNotFound,
)

from ..policy.place import Host, Place, parse_host
from .errors import InvalidRequestError
from .storage_proxies import storage_client

#: For all that a proxy is asked at one request.
TIMEOUT_SECONDS = 30.0

#: A proxy removes a folder after it has answered. So often, and so many seconds after one another,
#: it is asked whether the folder is gone.
_REMOVAL_LOOKS = 20
_REMOVAL_LOOK_SECONDS = 0.5

#: What a proxy says of a folder that is not there: 400 since 26.4, 404 or 410 elsewhere.
_MISSING = (VFolderBadRequest, VFolderGone, VFolderNotFound)


class ProvisionedFolders:
    """Every method raises ServiceUnavailable where the storage proxy does not answer or fails."""

    def __init__(self, volumes: VolumesConfig) -> None:
        self._volumes = volumes

    def host(self, wanted: str | None) -> Host:
        """The volume that is meant.

        Args:
            wanted: ``proxy:volume``. None: the manager's default.

        Raises:
            InvalidRequestError: there is no such proxy, or no default.
        """
        text = wanted or self._volumes.default_host
        if not text:
            raise InvalidRequestError(
                "the manager has no default storage host; name one, such as local:volume1"
            )
        try:
            host = parse_host(text)
        except ValueError as e:
            raise InvalidRequestError(f"host = {text!r}: {e}") from e
        if host.proxy not in self._volumes.proxies:
            known = ", ".join(sorted(self._volumes.proxies)) or "none"
            raise InvalidRequestError(
                f"host = {text!r}: there is no storage proxy {host.proxy!r}, only {known}"
            )
        return host

    async def make(self, place: Place) -> bool:
        """Makes a folder unless it is there.

        Returns:
            Whether it was made now.

        Raises:
            InvalidRequestError: the proxy has no such volume.
        """
        try:
            async with (
                asyncio.timeout(TIMEOUT_SECONDS),
                storage_client(self._volumes.proxies[place.host.proxy]) as client,
            ):
                await _check_volume(client, place.host)
                if await _is_there(client, place):
                    return False
                try:
                    await client.create_folder(place.host.volume, place.vfid)
                except QuotaScopeNotFoundError as e:
                    raise InvalidRequestError(
                        f"the storage proxy {place.host.proxy!r} makes no quota scopes by itself; "
                        "set allow-auto-quota-scope-creation = true in its storage-proxy.toml, or "
                        f"make the quota scope {place.vfid.partition('/')[0]} on "
                        f"{place.host.volume}"
                    ) from e
                except BackendAIError:
                    # Of two requests at the same time, one comes second.
                    if await _is_there(client, place):
                        return False
                    raise
                return True
        except InvalidRequestError:
            raise
        except (BackendAIError, TimeoutError) as e:
            raise _unavailable(place, e) from e

    async def remove(self, place: Place) -> bool:
        """Removes a folder and all that lies in it.

        Returns:
            Whether it is gone. If not, the storage proxy goes on removing it.
        """
        try:
            async with (
                asyncio.timeout(TIMEOUT_SECONDS),
                storage_client(self._volumes.proxies[place.host.proxy]) as client,
            ):
                if not await _is_there(client, place):
                    return True
                await client.delete_folder(place.host.volume, place.vfid)
                for _ in range(_REMOVAL_LOOKS):
                    if not await _is_there(client, place):
                        return True
                    await asyncio.sleep(_REMOVAL_LOOK_SECONDS)
                return False
        except (BackendAIError, TimeoutError) as e:
            raise _unavailable(place, e) from e


async def _check_volume(client: StorageProxyManagerFacingClient, host: Host) -> None:
    names = sorted(volume["name"] for volume in (await client.get_volumes())["volumes"])
    if host.volume not in names:
        raise InvalidRequestError(
            f"host = '{host}': the storage proxy {host.proxy!r} has no volume {host.volume!r}, "
            f"only {', '.join(names) or 'none'}"
        )


async def _is_there(client: StorageProxyManagerFacingClient, place: Place) -> bool:
    try:
        await client.get_mount_path(place.host.volume, place.vfid)
    except _MISSING:
        return False
    return True


def _unavailable(place: Place, error: Exception) -> ServiceUnavailable:
    reason = f"no answer in {TIMEOUT_SECONDS:.0f} s" if isinstance(error, TimeoutError) else error
    return ServiceUnavailable(f"the storage proxy {place.host.proxy!r} fails: {reason}")
