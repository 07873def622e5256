"""The real WebUI in Chromium, which `./scripts/test browser` brings up before these tests run.

Screenshots lie under ``.cluster/artifacts/browser``, or where ``--screenshots`` says. A test that
fails leaves one of each of its pages, and tells what their consoles told.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import (
    Browser,
    BrowserContext,
    ConsoleMessage,
    Error,
    Locator,
    Page,
    StorageState,
    ViewportSize,
    expect,
    sync_playwright,
)

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

from devcluster import configuration, settings
from devcluster.paths import STATE

_CHROMIUM = "/usr/bin/chromium"
_ARGUMENTS = (
    # Chromium refuses to run as root with a sandbox.
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
_SIZE = ViewportSize(width=1280, height=900)
#: Two cores take ten seconds for the WebUI's scripts, and longer beside a session that starts.
_TIMEOUT_MILLISECONDS = 60_000

#: A test's pages, and what went wrong on each.
_PAGES = pytest.StashKey[list[tuple[Page, list[str]]]]()

type Shoot = Callable[[Page, str], Path]
type PageOf = Callable[..., Page]


def pytest_addoption(parser: pytest.Parser) -> None:
    default = STATE / "artifacts" / "browser"
    parser.addoption("--screenshots", type=Path, default=default, help="folder of screenshots")


# Playwright's event loop occupies the thread; tests of other folders, later, have their own.
@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        expect.set_options(timeout=_TIMEOUT_MILLISECONDS)
        browser = playwright.chromium.launch(executable_path=_CHROMIUM, args=_ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture
def shoot(request: pytest.FixtureRequest) -> Shoot:
    """Saves what a page shows, under the test's name and one of its own."""

    def shoot(page: Page, name: str) -> Path:
        return _shot(request.node, page, name)

    return shoot


def _shot(item: pytest.Item, page: Page, name: str) -> Path:
    folder: Path = item.config.getoption("--screenshots")
    path = folder / f"{re.sub(r'[^\w.-]+', '-', item.name)}-{name}.png"
    page.screenshot(path=path)
    return path


@pytest.fixture(scope="package")
def logins() -> dict[str, StorageState]:
    """Role → the cookies of a login, which takes ten seconds."""
    return {}


@pytest.fixture
def page_of(
    browser: Browser, request: pytest.FixtureRequest, logins: dict[str, StorageState]
) -> Iterator[PageOf]:
    """Opens an address of the WebUI for a user, by role; a language may be named too."""
    pages = request.node.stash.setdefault(_PAGES, [])
    contexts: list[BrowserContext] = []

    def page_of(role: str, path: str = "/", *, locale: str = "en-US") -> Page:
        known = logins.get(role)
        context = browser.new_context(viewport=_SIZE, locale=locale, storage_state=known)
        contexts.append(context)
        context.set_default_timeout(_TIMEOUT_MILLISECONDS)
        page = context.new_page()
        pages.append((page, _troubles(page)))
        if known is None:
            _log_in(page, role)
            # Not the local storage, which holds the language and what else a test has set.
            logins[role] = StorageState(cookies=context.storage_state()["cookies"])
        _open(page, path, _user_menu(page))
        return page

    yield page_of
    for context in contexts:
        context.close()


def _log_in(page: Page, role: str) -> None:
    name_field = page.locator("[data-bai-field-id=user_id]")
    _open(page, "/", name_field)
    name, password = configuration.LOGINS[role]
    name_field.fill(name)
    page.locator("[data-bai-field-id=password]").fill(password)
    page.keyboard.press("Enter")
    expect(_user_menu(page)).to_be_visible()


def _user_menu(page: Page) -> Locator:
    """What comes last, once a user is logged in."""
    return page.get_by_test_id("user-dropdown-button")


def _open(page: Page, path: str, sign: Locator) -> None:
    """Opens an address, and waits for a sign that it is there."""
    try:
        page.goto(settings.web_url() + path)
        expect(sign).to_be_visible()
    except (Error, AssertionError):
        # Chromium drops requests when Docker makes or removes a container's network interface.
        page.goto(settings.web_url() + path)
        expect(sign).to_be_visible()


def _troubles(page: Page) -> list[str]:
    """Grows with what goes wrong on a page."""
    troubles: list[str] = []

    def on_console(message: ConsoleMessage) -> None:
        if message.type == "error":
            troubles.append(message.text)

    page.on("console", on_console)
    page.on("pageerror", lambda error: troubles.append(str(error)))
    page.on("requestfailed", lambda request: troubles.append(f"{request.url}: {request.failure}"))
    return troubles


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.when == "call" and report.failed:
        pages: list[tuple[Page, list[str]]] = item.stash.get(_PAGES, [])
        for number, (page, troubles) in enumerate(pages):
            path = _shot(item, page, f"failed-{number}")
            report.sections.append((str(path), "\n".join(troubles)))
    return report
