"""Which project a session is of, on its way from the manager to the agent.

Backend.AI 26.4 does not tell its agents. So the plugin in the manager leaves word in Backend.AI's
own store (Valkey), under the session's id, and the plugin in the agent looks there.
"""

from __future__ import annotations

from uuid import UUID

#: A session that starts anew after this, on an agent that has forgotten it, is of no known project.
EXPIRY_SECONDS = 30 * 86400


def key_of(session_id: str) -> str:
    """Where a session's project is stored."""
    return f"kvcache.project.{session_id}"


def decode(content: bytes) -> str:
    """The project's id, as it stands in a policy.

    Raises:
        ValueError: it is none.
    """
    return str(UUID(content.decode("ascii")))
