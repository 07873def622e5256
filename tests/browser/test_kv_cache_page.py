"""The page "KV Cache": the policy, and what comes of it."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from ai.backend.kvcache.policy.place import provisioned_place
from ai.backend.kvcache.policy.policy import ETCD_KEY
from cluster.conftest import client as client
from cluster.conftest import image as image
from cluster.projects import VOLUME, find_project, new_vfolder
from cluster.rest import ask
from devcluster import demo, etcd, settings
from devcluster.client import Client, model_definition
from devcluster.models import FUNCTION_MODEL, make_tiny_model
from devcluster.tinytext import long_prompt

from .conftest import PageOf, Shoot

PATH = "/kv-cache"

#: A session is on the page after the agent's next tick, Prometheus' next scrape and the page's next
#: question, of 5 s each, and the manager's cache.
PATIENCE_MILLISECONDS = 90_000


@pytest.fixture(autouse=True)
def no_policy() -> Iterator[None]:
    etcd.delete(ETCD_KEY)
    yield
    etcd.delete(ETCD_KEY)


def stored() -> Any:
    return json.loads(etcd.get(ETCD_KEY) or "{}")


@pytest.fixture(scope="module")
def project(client: Client) -> str:
    """The id of the users' project."""
    return str(client.api.Group.from_name("default")[0]["id"])


def row(page: Page, project: str) -> Any:
    return page.locator(f"tr[data-project='{project}']")


def saved(within: Any) -> Any:
    """What stands beside a change that was written."""
    return within.get_by_text("✓ Saved")


def setting(page: Page, label: str) -> Any:
    """One of the site's, once the others are shown."""
    return page.locator(".settings").get_by_label(label, exact=True)


class TestMenu:
    def test_leads_to_the_page_for_superadmins(self, page_of: PageOf, shoot: Shoot) -> None:
        page = page_of("admin")
        page.get_by_text("Admin Settings").click()
        page.get_by_role("link", name="KV Cache").click()
        title = page.get_by_role("heading", name="KV Cache", level=1)
        expect(title).to_be_visible()
        assert page.url == f"{settings.web_url()}{PATH}"
        # Below the WebUI's header, and not half way down.
        box = title.bounding_box()
        assert box is not None
        assert box["y"] < 200
        shoot(page, "page")

    def test_is_not_there_for_others_who_are_refused(self, page_of: PageOf, shoot: Shoot) -> None:
        page = page_of("user")
        expect(page.get_by_role("link", name="Sessions")).to_be_visible()
        expect(page.get_by_role("link", name="KV Cache")).to_have_count(0)
        page = page_of("user", PATH)
        expect(page.get_by_text("This page is for superadmins.")).to_be_visible()
        expect(page.get_by_role("table")).to_have_count(0)
        shoot(page, "refused")
        for path in ("policy", "projects", "folders"):
            assert page.request.get(f"{settings.web_url()}/func/kvcache/{path}").status == 403
        patch = page.request.patch(
            f"{settings.web_url()}/func/kvcache/policy", data={"patch": {"mode": "off"}}
        )
        assert patch.status == 403
        assert stored() == {}


class TestPolicy:
    def test_switches_of_the_site(self, page_of: PageOf) -> None:
        page = page_of("admin", PATH)
        expect(page.get_by_role("radio", name="On request")).to_be_checked()
        page.get_by_role("radio", name="Automatic").check()
        expect(saved(page)).to_be_visible()
        assert stored() == {"mode": "auto"}
        page.reload()
        expect(page.get_by_role("radio", name="Automatic")).to_be_checked()

    def test_other_settings_of_the_site(self, page_of: PageOf, shoot: Shoot) -> None:
        page = page_of("admin", PATH)
        page.get_by_text("More settings").click()
        setting(page, "Host memory").fill("40GiB")
        setting(page, "Host memory").press("Enter")
        expect(saved(page)).to_be_visible()
        setting(page, "Shared by").select_option("user")
        expect(setting(page, "Shared by")).to_be_enabled()
        assert stored() == {"cpu-tier": "40GiB", "sharing": "user"}
        setting(page, "Host memory").fill("")
        setting(page, "Host memory").press("Enter")
        setting(page, "Shared by").select_option("")
        expect(setting(page, "Shared by")).to_be_enabled()
        assert stored() == {}
        shoot(page, "settings")

    def test_value_that_cannot_be_used(self, page_of: PageOf, project: str, shoot: Shoot) -> None:
        page = page_of("admin", PATH)
        cap = row(page, project).get_by_label("Folder cap")
        cap.fill("lots")
        cap.press("Enter")
        refusal = row(page, project).get_by_role("alert")
        expect(refusal).to_contain_text("'lots' is not a size; write it as 80GiB")
        # What was typed is still there to be put right.
        expect(cap).to_have_value("lots")
        shoot(page, "refusal")
        assert stored() == {}
        cap.fill("2TiB")
        cap.press("Enter")
        expect(saved(row(page, project))).to_be_visible()
        expect(refusal).to_have_count(0)
        assert stored() == {"projects": {project: {"folder-cap": "2TiB"}}}

    def test_what_others_wrote_meanwhile_stays(self, page_of: PageOf, shoot: Shoot) -> None:
        page = page_of("admin", PATH)
        expect(page.get_by_role("radio", name="On request")).to_be_checked()
        etcd.put(ETCD_KEY, json.dumps({"mode": "off"}))
        page.get_by_role("radio", name="Automatic").check()
        expect(page.get_by_role("alert")).to_contain_text("Somebody else has changed the policy")
        expect(page.get_by_role("radio", name="Off")).to_be_checked()
        shoot(page, "conflict")
        assert stored() == {"mode": "off"}

    def test_policy_that_cannot_be_used(self, page_of: PageOf) -> None:
        etcd.put(ETCD_KEY, json.dumps({"mode": "perhaps"}))
        page = page_of("admin", PATH)
        banner = page.get_by_role("alert")
        expect(banner).to_contain_text("mode = 'perhaps': must be one of explicit, auto, off")
        expect(banner).to_contain_text("policy set --file")
        expect(page.get_by_role("heading", name="Running sessions")).to_be_visible()


class TestLanguageAndTheme:
    def test_korean(self, page_of: PageOf, shoot: Shoot) -> None:
        page = page_of("admin", PATH, locale="ko-KR")
        expect(page.get_by_role("heading", name="KV 캐시", level=1)).to_be_visible()
        page.get_by_text("추가 설정").click()
        expect(setting(page, "호스트 메모리")).to_be_visible()
        shoot(page, "korean")

    def test_dark(self, page_of: PageOf, shoot: Shoot) -> None:
        page = page_of("admin", PATH)
        heading = page.get_by_role("heading", name="Projects")
        light = heading.evaluate("element => getComputedStyle(element).color")
        page.get_by_test_id("button-theme").click()
        expect(heading).not_to_have_css("color", light)
        shoot(page, "dark")


def test_figures_for_people(page_of: PageOf) -> None:
    page = page_of("admin", PATH)
    found = page.evaluate(
        """async () => {
            const { version } = await (await fetch('/func/kvcache/ui')).json();
            const module = `/func/kvcache/ui/${version}/format.js`;
            const { bytes, seconds, figure } = await import(module);
            return [
                bytes(512), bytes(1536), bytes(3 * 2 ** 40),
                seconds(0.25), seconds(90), seconds(7200), seconds(-3.2),
                figure('kvcache_util', 81.2), figure('kvcache_load_rate', 2 ** 30),
                figure('kvcache_loaded_tokens', 1403888), figure('kvcache_transport', 3),
            ];
        }"""
    )
    assert found == [
        "512 B", "1.5 KiB", "3.0 TiB",
        "0.25 sec", "90.0 sec", "2 hr", "-3.20 sec",
        "81 %", "1.0 GiB/s",
        "1,403,888", "gds",
    ]  # fmt: skip


def remove_kv_folder(project: str) -> None:
    """What the page has made for it, for good."""
    etcd.delete(ETCD_KEY)
    answer = ask("admin", "DELETE", f"/folders/{VOLUME}/{project}")
    assert answer.status == HTTPStatus.OK, answer.body
    assert answer.body["gone"] is True


@pytest.fixture
def model(client: Client, image: str, tmp_path: Path) -> str:
    """A model folder of the user's; its name."""
    name = f"page-{uuid.uuid4().hex[:8]}"
    make_tiny_model(tmp_path, [*FUNCTION_MODEL, "--seed", "11"], image=image)
    demo.ensure_model(client, name, tmp_path, model_definition(demo.START_COMMAND))
    return name


class TestFromSwitchToFigures:
    """An administrator switches a project on, and somebody's service has KV cache."""

    @pytest.fixture(autouse=True)
    def no_folder(self, project: str) -> Iterator[None]:
        remove_kv_folder(project)
        yield
        remove_kv_folder(project)

    def test_vfolder_of_earlier_versions_is_replaced(
        self, page_of: PageOf, shoot: Shoot, project: str
    ) -> None:
        default = find_project("default")
        assert default is not None
        with new_vfolder(default, f"kv-{uuid.uuid4().hex[:8]}", permission="ro") as old:
            etcd.put(ETCD_KEY, json.dumps(old.policy()))
            page = page_of("admin", PATH)
            expect(row(page, project)).to_contain_text("can read and change")
            shoot(page, "reachable-folder")
            page.once("dialog", lambda dialog: dialog.dismiss())
            row(page, project).get_by_role("button", name="Replace it").click()
            assert stored() == old.policy()
            page.once("dialog", lambda dialog: dialog.accept())
            row(page, project).get_by_role("button", name="Replace it").click()
            expect(saved(row(page, project))).to_be_visible()
            expect(row(page, project).get_by_role("button", name="Replace it")).to_have_count(0)
            provisioned = str(provisioned_place(VOLUME, project))
            assert stored() == {"projects": {project: {"folder": provisioned}}}

    def test_service(
        self,
        page_of: PageOf,
        shoot: Shoot,
        client: Client,
        image: str,
        model: str,
        project: str,
    ) -> None:
        page = page_of("admin", PATH)
        row(page, project).get_by_role("button", name="Make one").click()
        expect(row(page, project)).to_contain_text("local:volume1")
        row(page, project).get_by_label("KV cache").select_option("auto")
        expect(saved(row(page, project))).to_be_visible()
        said = stored()["projects"][project]
        assert said["mode"] == "auto"
        assert said["folder"] == str(provisioned_place(VOLUME, project))

        resources = {**demo.RESOURCES, "mem": "5g"}
        service = demo.create_service(client, model, image, resources, folders={})
        session: str | None = None
        try:
            url, session = demo.wait_for_service(client, service)
            demo.ask(url, long_prompt(demo.PROMPT_TOKENS, seed=11))
            shown = page.locator(f"tr[data-session='{session}']")
            expect(shown).to_contain_text("user@lablup.com", timeout=PATIENCE_MILLISECONDS)
            bar = shown.get_by_role("img", name="computed 100 %")
            expect(bar).to_be_visible(timeout=PATIENCE_MILLISECONDS)
            # 3,000 tokens are 11 whole chunks of 256.
            expect(shown).to_contain_text("11 blocks", timeout=PATIENCE_MILLISECONDS)
            shown.get_by_role("button").click()
            plan = demo.plan_of(client, session)
            details = page.locator(".details")
            expect(details).to_contain_text(plan["namespace"]["name"])
            shoot(page, "sessions")
            details.scroll_into_view_if_needed()
            shoot(page, "plan")
        finally:
            client.delete_service(service)
            if session is not None:
                # The folder cannot go before it.
                client.stop_session(session)
