"""What `presets install` adds to the WebUI's launcher."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect

from cluster.conftest import client as client
from cluster.projects import backend_ai
from devcluster.client import Client

from .conftest import PageOf, Shoot

LABELS = ("KV cache offloading", "KV cache folder", "Transport", "GPU buffer", "Host memory")


def presets(action: str) -> None:
    done = backend_ai("kvcache", "presets", action)
    assert done.returncode == 0, done.stderr


@pytest.fixture
def installed() -> Iterator[None]:
    presets("install")
    yield
    presets("remove")


@pytest.fixture
def deployment(client: Client) -> Iterator[str]:
    """The name of one that the test makes."""
    name = f"launcher-{uuid.uuid4().hex[:8]}"
    yield name
    client.delete_service(client.services()[name])


def runtime_parameters(page: Page, deployment: str) -> None:
    """Opens those of vLLM in a new deployment's dialog."""
    page.get_by_role("button", name="Create Deployment").click()
    page.get_by_placeholder("Enter a deployment name").fill(deployment)
    page.get_by_role("dialog").get_by_role("button", name="Create", exact=True).click()
    page.get_by_role("button", name="Add Revision").first.click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("button", name="Switch to Advanced Mode").click()
    dialog.get_by_text("Select Runtime Variant").click()
    page.get_by_role("option", name="vllm").click()


def test_controls_of_a_revision(
    installed: None, deployment: str, page_of: PageOf, shoot: Shoot
) -> None:
    page = page_of("user", "/project/default/deployments")
    page.set_viewport_size({"width": 1280, "height": 1300})
    runtime_parameters(page, deployment)
    page.get_by_role("button", name="Kv Cache").click()
    for label in LABELS:
        shown = page.get_by_role("dialog").get_by_text(label).filter(visible=True)
        expect(shown.first).to_be_visible()
    page.locator("[data-bai-field-id=runtimeParams_BACKENDAI_KVCACHE]").check()
    page.locator("[data-bai-field-id=runtimeParams_BACKENDAI_KVCACHE_BUFFER]").fill("24GiB")
    shoot(page, "controls")
