"""What the routes need for as long as the manager runs, and it does not hand to its webapps."""

from __future__ import annotations

from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor

from ai.backend.manager.clients.prometheus.client import PrometheusClient
from ai.backend.manager.dependencies.system.prometheus_client import PrometheusClientDependency
from aiohttp import web

from .folder_usage import FolderUsages
from .provisioned import ProvisionedFolders

PROMETHEUS = web.AppKey("prometheus", PrometheusClient)
FOLDER_USAGES = web.AppKey("folder_usages", FolderUsages)
PROVISIONED_FOLDERS = web.AppKey("provisioned_folders", ProvisionedFolders)

#: One thread, so that whatever models people ask about, the manager has its other cores.
PLANNER = web.AppKey("planner", ThreadPoolExecutor)


async def provide(app: web.Application) -> AsyncIterator[None]:
    """For the webapp's ``cleanup_ctx``."""
    config = app["_root_app"]["_config_provider"].config
    app[FOLDER_USAGES] = FolderUsages(config.volumes)
    app[PROVISIONED_FOLDERS] = ProvisionedFolders(config.volumes)
    app[PLANNER] = ThreadPoolExecutor(max_workers=1, thread_name_prefix="kvcache-plan")
    try:
        async with PrometheusClientDependency().provide(config) as app[PROMETHEUS]:
            yield
    finally:
        app[PLANNER].shutdown(wait=False, cancel_futures=True)
