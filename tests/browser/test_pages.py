"""Every page in a real browser: readable by all, in every form, and harmless whatever the names and reasons contain."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from tests.browser.conftest import Open
from tests.browser.preloaded import add_entries, preloaded
from tests.dashboards import Dashboard, dashboard
from tests.grpc.raw import Raw
from tests.running import running

from puf_common.v1 import federation_pb2 as fed
from puf_server.runtime.server import Server

pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe-playwright-python is not installed")
AXE = files("axe_playwright_python") / "axe.min.js"

HOSTILE = "<script>window.hit=1</script>\"'><img src=x onerror=window.hit=1>{{7*7}}\u202e\nevent: reset\ndata: {}\n\n"
PAGES = ("/", "/requests", "/requests/{ticket}", "/clients", "/rounds", "/models", "/audit", "/no-such-page")
PHONE = {"viewport": {"width": 375, "height": 700}}


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return preloaded(tmp_path_factory.mktemp("pages") / "state", clients=60, rounds=120, title=HOSTILE)


@pytest.fixture(scope="module")
def server(state: Path) -> Iterator[Server]:
    with running(state) as server:
        yield server


@pytest.fixture(scope="module")
def ticket(server: Server, state: Path) -> Iterator[str]:
    """A request with hostile texts everywhere."""
    with Raw(server.port, "clinic-0007") as client:
        client.join(device=HOSTILE[:100])
        beat = fed.HeartbeatRequest(session=client.session, activity=HOSTILE)
        client.stub.Heartbeat(beat, **client.options)
        found = client.file(reference=HOSTILE).ticket.id
        add_entries(state, 3, why=HOSTILE, names=[HOSTILE] * 9)
        yield found


@pytest.fixture(scope="module")
def shown(server: Server, ticket: str) -> Iterator[Dashboard]:
    with dashboard(server) as shown:
        while shown.ask("/").code != 200:
            pass
        yield shown


def visit(page: Any, shown: Dashboard, path: str, ticket: str) -> None:
    page.goto(shown.url + path.format(ticket=ticket))
    page.locator("h1").wait_for()


def live(page: Any) -> None:
    page.locator("#connection", has_text="live").wait_for()


def violations(page: Any) -> list[Any]:
    found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    return [(v["id"], [n["html"] for n in v["nodes"]]) for v in found["violations"]]


@pytest.mark.parametrize("options", [{}, {"color_scheme": "dark"}, PHONE], ids=["light", "dark", "phone"])
def test_axe_finds_no_violation(new_page: Open, shown: Dashboard, ticket: str, options: dict[str, Any]) -> None:
    # The policy of the pages forbids scripts from elsewhere, also that of the test.
    page = new_page(bypass_csp=True, **options)
    for path in PAGES:
        visit(page, shown, path, ticket)
        live(page)
        page.evaluate(AXE.read_text())
        assert violations(page) == [], path
    page.evaluate("document.querySelector('main').append(document.createElement('img'))")
    assert "image-alt" in str(violations(page))


def test_hostile_texts_are_shown_as_text(new_page: Open, shown: Dashboard, ticket: str) -> None:
    page = new_page()
    for path in PAGES:
        visit(page, shown, path, ticket)
        live(page)
        assert page.evaluate("window.hit") is None
        assert page.locator("img, iframe, script:not([src]), [onerror]").count() == 0
        assert page.url == shown.url + path.format(ticket=ticket)
    visit(page, shown, "/requests/{ticket}", ticket)
    assert "<script>window.hit=1</script>" in page.locator("#request").inner_text()
    visit(page, shown, "/clients?q=clinic-0007", ticket)
    assert "<img src=x" in page.locator("#clients").inner_text()
    visit(page, shown, "/", ticket)
    assert "{{7*7}}" in page.locator("#events").inner_text()
    assert page.locator(".title").inner_text().startswith("<script>")


def test_hostile_texts_in_events_are_shown_as_text(
    new_page: Open, shown: Dashboard, ticket: str, server: Server, state: Path
) -> None:
    page = new_page()
    visit(page, shown, "/", ticket)
    live(page)
    newest = int(page.locator("#events li").first.get_attribute("data-number"))
    add_entries(state, 2, why=HOSTILE)
    page.locator(f'#events li[data-number="{newest + 2}"]').wait_for()
    assert HOSTILE.splitlines()[0] in page.locator("#events li").first.inner_text()
    assert page.evaluate("window.hit") is None


def test_a_page_that_was_hidden_catches_up(new_page: Open, shown: Dashboard, ticket: str, state: Path) -> None:
    def show(visible: bool) -> None:
        value = "visible" if visible else "hidden"
        page.evaluate(f"Object.defineProperty(document, 'visibilityState', {{value: '{value}', configurable: true}})")
        page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")

    page, other = new_page(), new_page()
    for opened in (page, other):
        visit(opened, shown, "/", ticket)
        live(opened)
    newest = int(page.locator("#events li").first.get_attribute("data-number"))
    show(False)
    add_entries(state, 5)
    other.locator(f'#events li[data-number="{newest + 5}"]').wait_for()
    assert page.locator(f'#events li[data-number="{newest + 1}"]').count() == 0
    show(True)
    page.locator(f'#events li[data-number="{newest + 5}"]').wait_for()
    numbers = [int(n) for n in page.eval_on_selector_all("#events li", "items => items.map(i => i.dataset.number)")]
    assert numbers == list(range(newest + 5, newest + 5 - len(numbers), -1))


def test_pages_work_without_javascript(new_page: Open, shown: Dashboard, ticket: str) -> None:
    page = new_page(java_script_enabled=False)
    visit(page, shown, "/", ticket)
    assert "of 61" in page.locator("#now").inner_text()
    assert page.locator("#rounds tbody tr").count() == 6
    assert page.locator("noscript").inner_text() != ""
    page.get_by_role("link", name="Requests", exact=True).click()
    page.get_by_role("link", name=ticket).click()
    assert page.locator(".timeline li").count() >= 1
    page.get_by_role("link", name="Clients", exact=True).click()
    page.get_by_label("Name contains").fill("0042")
    page.get_by_role("button", name="Show").click()
    assert page.locator("#clients tbody tr").count() == 1
    page.get_by_role("link", name="Rounds", exact=True).click()
    page.get_by_label("Kind").select_option("unlearn")
    page.get_by_role("button", name="Show").click()
    assert page.locator("#rounds tbody tr").count() == 1
    page.get_by_role("link", name="Audit log", exact=True).click()
    assert "Chain verified" in page.locator("#chain").inner_text()
    page.get_by_role("link", name="Older").click()
    assert page.locator("#entries tbody tr").count() > 10


def test_nothing_is_wider_than_a_phone(new_page: Open, shown: Dashboard, ticket: str) -> None:
    page = new_page(**PHONE)
    for path in PAGES:
        visit(page, shown, path, ticket)
        live(page)
        assert page.evaluate("document.documentElement.scrollWidth") <= 375, path


def test_dark_mode_follows_the_system(new_page: Open, shown: Dashboard, ticket: str) -> None:
    def brightness(page: Any) -> int:
        colour = page.evaluate("getComputedStyle(document.body).backgroundColor")
        return sum(int(part) for part in colour.removeprefix("rgb(").removesuffix(")").split(","))

    light, dark = new_page(color_scheme="light"), new_page(color_scheme="dark")
    for page in (light, dark):
        visit(page, shown, "/", ticket)
        page.locator("canvas").first.wait_for()
    assert brightness(light) > 600
    assert brightness(dark) < 120


def test_every_page_is_reached_by_keyboard(new_page: Open, shown: Dashboard, ticket: str) -> None:
    page = new_page()
    visit(page, shown, "/", ticket)
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to content"
    reached = []
    for _ in range(8):
        page.keyboard.press("Tab")
        reached.append(page.evaluate("document.activeElement.getAttribute('href')"))
    assert reached[1:7] == ["/", "/requests", "/clients", "/rounds", "/models", "/audit"]
    page.keyboard.press("Shift+Tab")
    page.locator('nav a[href="/audit"]').press("Enter")
    page.locator("h1", has_text="Audit log").wait_for()


def test_a_frame_of_another_site_shows_nothing(new_page: Open, shown: Dashboard) -> None:
    page = new_page()
    page.route(
        "http://127.0.0.1:1/*",
        lambda r: r.fulfill(body=f'<iframe src="{shown.url}/"></iframe>', content_type="text/html"),
    )
    page.goto("http://127.0.0.1:1/")
    (_, frame) = page.frames
    assert "Requests" not in frame.content()
