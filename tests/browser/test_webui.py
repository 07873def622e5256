"""The WebUI as it comes, with this repository's page in it."""

from __future__ import annotations

import requests
from playwright.sync_api import Response, expect

from devcluster import settings
from devcluster.paths import CLONE

from .conftest import PageOf, Shoot


def test_sessions_page(page_of: PageOf, shoot: Shoot) -> None:
    page = page_of("admin")
    answers: list[Response] = []
    page.on("response", lambda answer: answers.append(answer))
    page.get_by_role("link", name="Sessions").click()
    expect(page.get_by_role("table").get_by_text("Session Name")).to_be_visible()
    expect(page.get_by_role("heading", name="My Total Resource Usage")).to_be_visible()
    shoot(page, "sessions")
    # What the gateway answered.
    queries = [answer for answer in answers if answer.url.endswith("/func/admin/gql")]
    assert queries
    for query in queries:
        assert query.ok
        assert "errors" not in query.json()


def test_page_plugin_is_served() -> None:
    answer = requests.get(f"{settings.web_url()}/dist/plugins/kv-cache.js", timeout=30)
    assert answer.headers["content-type"].startswith("text/javascript")
    # What is missing is answered by the WebUI's own page, with 200.
    stub = CLONE / "src/ai/backend/kvcache/webui/kv-cache.js"
    assert answer.content == stub.read_bytes()
