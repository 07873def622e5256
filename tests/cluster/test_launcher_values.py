"""What the WebUI's launcher sends, on its way into a session."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from ai.backend.common.dto.manager.query import StringFilter
from ai.backend.common.dto.manager.v2.deployment.request import CreateDeploymentInput
from ai.backend.common.dto.manager.v2.image.request import (
    AdminSearchImagesInput,
    ImageFilterInputDTO,
)

from ai.backend.kvcache.cli.launcher_store import LauncherStore
from devcluster import images
from devcluster.client import SMALL_IMAGE, Client, wait_until

from .conftest import Folders, RunningSession, new_folders, running
from .v2 import controls, manager, variant_id

#: Label → what the WebUI sends for it.
SENT = {"KV cache offloading": "true", "GPU buffer": "24GiB", "Host memory": "off"}


def image_id(reference: str) -> str:
    by_name = ImageFilterInputDTO(name=StringFilter(equals=reference))
    search = AdminSearchImagesInput(filter=by_name, limit=1)
    answer = manager(lambda registry: registry.image.admin_search(search))
    return str(answer.items[0].id)


START_COMMAND = ["bash", "-c", "vllm serve /models || sleep infinity"]


def deployment(client: Client, folders: Folders) -> CreateDeploymentInput:
    """As the WebUI's dialogs send it; the command goes on where the image has no engine."""
    ids = {folder["name"]: str(uuid.UUID(folder["id"])) for folder in client.api.VFolder.list()}
    sent = {**SENT, "KV cache folder": folders.kv}
    values = [
        {"preset_id": str(p.id), "value": sent[p.display_name]}
        for p in controls("vllm")
        if p.display_name in sent
    ]
    assert len(values) == len(sent)
    slots = {"cpu": "1", "mem": "512m"}
    revision = {
        "cluster_config": {"mode": "single-node", "size": 1},
        "resource_config": {
            "resource_slots": {
                "entries": [{"resource_type": k, "quantity": v} for k, v in slots.items()]
            }
        },
        "image": {"id": image_id(SMALL_IMAGE)},
        "model_runtime_config": {
            "runtime_variant_id": str(variant_id("vllm")),
            "environ": {"entries": [{"name": "BACKENDAI_KVCACHE", "value": "off"}]},
            "runtime_variant_preset_values": values,
        },
        "model_definition": {"models": [{"service": {"start_command": START_COMMAND}}]},
        "model_mount_config": {"vfolder_id": ids[folders.model], "mount_destination": "/models"},
        "extra_mounts": [{"vfolder_id": ids[folders.kv], "mount_destination": "/mnt/kv"}],
        "auto_activate": True,
    }
    return CreateDeploymentInput.model_validate({
        "metadata": {
            "project_id": client.api.Group.from_name("default")[0]["id"],
            "domain_name": "default",
            "resource_group_name": "default",
            "name": f"launched-{uuid.uuid4().hex[:8]}",
        },
        "network_access": {"open_to_public": False},
        "default_deployment_strategy": {"type": "ROLLING"},
        "replica_count": 1,
        "initial_revision": revision,
    })


@pytest.fixture(scope="module")
def launched(
    client: Client, model_folder: tuple[str, Path]
) -> Iterator[tuple[RunningSession, Folders]]:
    """The session of a service that was launched with some of the controls touched."""
    images.register()
    manager(lambda registry: LauncherStore(registry).install())
    with new_folders(client, model_folder[0]) as folders:
        body = deployment(client, folders)
        made = manager(lambda registry: registry.deployment.create(body), role="user")
        service = str(made.deployment.id)
        session_id: str | None = None
        try:
            session_id = wait_until(
                "The service's session", lambda: client.service_session(service), timeout=300
            )
            yield running(client, session_id), folders
        finally:
            client.delete_service(service)
            if session_id is not None:
                # Its folder cannot go before it.
                client.stop_session(session_id)
            manager(lambda registry: LauncherStore(registry).remove())


def test_values_are_the_sessions_environment(launched: tuple[RunningSession, Folders]) -> None:
    session, folders = launched
    said = {k: v for k, v in session.environ().items() if k.startswith("BACKENDAI_KVCACHE")}
    # Over what the revision's own environment says; what was not touched is not there.
    assert said == {
        "BACKENDAI_KVCACHE": "true",
        "BACKENDAI_KVCACHE_FOLDER": folders.kv,
        "BACKENDAI_KVCACHE_BUFFER": "24GiB",
        "BACKENDAI_KVCACHE_CPU": "off",
    }


def test_the_plugin_understands_them(launched: tuple[RunningSession, Folders]) -> None:
    session, folders = launched
    plan = session.plan()
    assert plan["kv_cache"]
    assert plan["decisions"][0] == {
        "what": "folder",
        "value": folders.kv,
        "why": "named by BACKENDAI_KVCACHE_FOLDER",
    }
