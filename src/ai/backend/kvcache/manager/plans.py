"""Plans as the agents publish them."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from ai.backend.common.clients.valkey_client.valkey_stat.client import ValkeyStatClient
from ai.backend.logging import BraceStyleAdapter

from ..plan.published import decode, key_of

log = BraceStyleAdapter(logging.getLogger(__spec__.name))


async def plans_of(client: ValkeyStatClient, kernel_ids: Sequence[str]) -> dict[str, Any]:
    """Kernel id → plan, in the order of the ids; those without a plan are left out."""
    if not kernel_ids:
        return {}
    stored = await client.execute_command(["MGET", *map(key_of, kernel_ids)])
    plans: dict[str, Any] = {}
    for kernel_id, content in zip(kernel_ids, stored, strict=True):
        if content is None:
            continue
        try:
            plans[kernel_id] = decode(content)
        except ValueError as e:
            log.warning("kernel {}: what is stored as its plan is none: {}", kernel_id, e)
    return plans
