"""What the manager serves under ``/kvcache``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import aiohttp_cors
from ai.backend.manager.api.rest.types import CORSOptions, WebMiddleware
from ai.backend.manager.plugin.webapp import WebappPlugin
from aiohttp import web

from . import context, services
from .routes import ROUTES


class KVCacheWebapp(WebappPlugin):
    """The manager makes one at its start; the routes reach the manager through their request."""

    async def init(self, context: Any = None) -> None:
        pass

    async def cleanup(self) -> None:
        pass

    async def update_plugin_config(self, plugin_config: Mapping[str, Any]) -> None:
        self.plugin_config = plugin_config

    async def create_app(
        self, cors_options: CORSOptions
    ) -> tuple[web.Application, Sequence[WebMiddleware]]:
        app = web.Application()
        app["prefix"] = "kvcache"
        app.cleanup_ctx.extend([context.hand_over, services.provide])
        cors = aiohttp_cors.setup(app, defaults=cors_options)
        for method, path, handler in ROUTES:
            cors.add(app.router.add_route(method, path, handler))
        return app, ()
