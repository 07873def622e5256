"""Ends all sessions the orderly way, before the daemons go. Run by `scripts/cluster down`.

A container that merely vanishes leaves its session RUNNING in the manager's database for good.
"""

from __future__ import annotations

from uuid import UUID

from ai.backend.client.exceptions import BackendAPIError, BackendClientError

from .client import Client, connect, wait_until
from .configuration import CREDENTIALS

_TIMEOUT_SECONDS = 90.0


def _end(client: Client) -> None:
    for service in client.services().values():
        client.scale_service(service, 0)
    for session in client.active_sessions():
        try:
            client.api.ComputeSession.from_session_id(UUID(session)).destroy(forced=True)
        except BackendAPIError:
            continue  # It ends already, or belongs to a service that was scaled down.


def _wait_for_end(client: Client) -> None:
    def ended() -> bool | None:
        return not client.active_sessions() or None

    wait_until("The end of all sessions", ended, _TIMEOUT_SECONDS)


def main() -> None:
    for role in CREDENTIALS:
        with connect(role) as client:
            _end(client)
            _wait_for_end(client)


if __name__ == "__main__":
    try:
        main()
    except BackendClientError as error:
        raise SystemExit(f"sessions could not be ended: {error}") from error
