"""The manager's newer interface, asked by Backend.AI's own client."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from uuid import UUID

from ai.backend.client.v2.auth import HMACAuth
from ai.backend.client.v2.config import ClientConfig
from ai.backend.client.v2.v2_registry import V2ClientRegistry
from ai.backend.common.dto.manager.v2.runtime_variant.request import SearchRuntimeVariantsInput
from ai.backend.common.dto.manager.v2.runtime_variant_preset.request import (
    RuntimeVariantPresetOrder,
    SearchRuntimeVariantPresetsInput,
)
from ai.backend.common.dto.manager.v2.runtime_variant_preset.response import (
    RuntimeVariantPresetNode,
)
from ai.backend.common.dto.manager.v2.runtime_variant_preset.types import (
    RuntimeVariantPresetOrderField,
)
from yarl import URL

from devcluster import configuration, settings


def manager[T](ask: Callable[[V2ClientRegistry], Awaitable[T]], role: str = "admin") -> T:
    """What the manager answers to one of the cluster's users."""

    async def run() -> T:
        access_key, secret_key = configuration.CREDENTIALS[role]
        config = ClientConfig(endpoint=URL(settings.manager_url()), endpoint_type="api")
        registry = await V2ClientRegistry.create(config, HMACAuth(access_key, secret_key))
        try:
            return await ask(registry)
        finally:
            await registry.close()

    return asyncio.run(run())


def parameters() -> dict[UUID, RuntimeVariantPresetNode]:
    """Id → parameter of an engine, everybody's, in the order in which the WebUI shows them."""
    by_rank = RuntimeVariantPresetOrder(field=RuntimeVariantPresetOrderField.RANK)
    search = SearchRuntimeVariantPresetsInput(order=[by_rank], limit=1000)
    answer = manager(lambda registry: registry.runtime_variant_preset.search(search))
    assert not answer.has_next_page
    return {item.id: item for item in answer.items}


def variant_id(name: str) -> UUID:
    search = SearchRuntimeVariantsInput(limit=1000)
    answer = manager(lambda registry: registry.runtime_variant.search(search))
    return next(item.id for item in answer.items if item.name == name)


def controls(variant: str) -> list[RuntimeVariantPresetNode]:
    """What an engine's tab for KV caches shows, in its order."""
    wanted = variant_id(variant)
    return [
        p
        for p in parameters().values()
        if p.runtime_variant_id == wanted and p.category == "kv_cache"
    ]
