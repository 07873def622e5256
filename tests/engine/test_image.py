"""Which engine an image holds, found through the real Docker without starting a container."""

from __future__ import annotations

import aiodocker

from ai.backend.kvcache.agent.image import find_versions
from ai.backend.kvcache.engine.versions import Versions


async def test_of_the_engine_image(image: str) -> None:
    async with aiodocker.Docker() as docker:
        assert await find_versions(docker, image) == Versions(
            {"vllm": "0.32.0+cpu", "lmcache": "0.5.6"}, is_complete=True
        )
