"""The manager as its clients see it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs
from packaging.version import InvalidVersion, Version

from ..errors import KVCacheError
from .check import Finding, failed, ok, skipped
from .client_config import client_is_configured
from .loops import run
from .network import Answer, UnreachableError, get_json, in_time, public, reason_of
from .versions import OLDEST

if TYPE_CHECKING:
    from .host import Host

MODULES = ("ai.backend.client.cli.v2.helpers", "ai.backend.client.v2.v2_registry")

_CORRECT = "correct BACKEND_ENDPOINT, or endpoint in ~/.backend.ai/config.toml"


class ApiError(KVCacheError):
    """The manager did not say. The message holds nothing secret."""

    def __init__(self, text: str, remedy: str | None = None) -> None:
        """
        Args:
            remedy: where that is wrong, and not only none of the user's business.
        """
        super().__init__(text)
        self.remedy = remedy


@attrs.frozen
class Endpoint:
    """Where the client asks."""

    address: str
    is_webserver: bool
    """Whether a web server stands before the manager and tells nothing without a login."""
    verify: bool


def _endpoint() -> Endpoint:
    """As the client is configured.

    Raises:
        ApiError: there is no client.
    """
    try:
        from ai.backend.client.cli.v2.helpers import load_v2_config
    except ImportError as e:
        raise ApiError(f"the client is not installed ({e.name} is missing)") from e
    config = load_v2_config()
    return Endpoint(
        str(config.endpoint), config.endpoint_type == "session", not config.skip_ssl_verification
    )


async def _rows(slot: str) -> int:
    from ai.backend.client.cli.v2.helpers import create_v2_registry, load_v2_config
    from ai.backend.common.dto.manager.query import StringFilter
    from ai.backend.common.dto.manager.v2.resource_slot.request import (
        AdminSearchResourceSlotTypesInput,
        ResourceSlotTypeFilter,
    )

    query = ResourceSlotTypeFilter(slot_name=StringFilter(equals=slot))
    registry = await create_v2_registry(load_v2_config())
    try:
        async with in_time():
            page = await registry.resource_slot.search_slot_types(
                AdminSearchResourceSlotTypesInput(filter=query)
            )
            return len(page.items)
    finally:
        await registry.close()


def knows_slot(slot: str) -> bool:
    """Whether it has a type of this slot, which only superadmins may ask.

    Raises:
        ApiError: it did not say.
    """
    try:
        return run(_rows(slot)) > 0
    except ImportError as e:
        raise ApiError(f"the client is not installed ({e.name} is missing)") from e
    except Exception as e:
        # Of the client's, of which only those that the manager answered have a status.
        match e.args:
            case (401, *_):
                raise ApiError(
                    "the manager refuses the client's keys",
                    "correct BACKEND_ACCESS_KEY and BACKEND_SECRET_KEY, or log in again",
                ) from e
            case (403, *_):
                raise ApiError("the manager tells superadmins only") from e
            case (int(status), *_):
                raise ApiError(
                    f"the manager answers with status {status}", "look at the manager and its log"
                ) from e
            case _:
                raise ApiError(
                    f"the manager was not reached: {reason_of(e)}",
                    f"look at the manager and its log, or {_CORRECT}",
                ) from e


def judge_answer(endpoint: Endpoint, answer: Answer) -> Finding:
    """Whether it is a manager, and new enough."""
    address = public(endpoint.address)
    if endpoint.is_webserver and answer.status < 500:
        return ok(f"{address}, a web server that tells no version")
    body: Any = answer.body if isinstance(answer.body, dict) else {}
    found = body.get("manager")
    if answer.status != 200 or not isinstance(found, str):
        return failed(f"what answers at {address} is no manager (status {answer.status})", _CORRECT)
    try:
        is_old = Version(found) < OLDEST
    except InvalidVersion:
        is_old = False
    if is_old:
        return failed(
            f"{address}, Backend.AI {found}, is older than {OLDEST}",
            f"upgrade Backend.AI to {OLDEST}",
        )
    return ok(f"{address}, Backend.AI {found}")


def look_at_manager(host: Host) -> Finding:
    """Its first page, which needs no key."""
    if not client_is_configured():
        return skipped("nobody said which manager to ask: BACKEND_ENDPOINT is not set")
    try:
        endpoint = _endpoint()
    except ApiError as e:
        return skipped(str(e))
    try:
        answer = run(get_json(endpoint.address, verify=endpoint.verify))
    except UnreachableError as e:
        return failed(f"{public(endpoint.address)}: {e}", f"open the way to it, or {_CORRECT}")
    return judge_answer(endpoint, answer)
