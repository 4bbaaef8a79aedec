"""A thousand clients, ten thousand rounds and ten thousand events in a real browser."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.browser.conftest import Open
from tests.browser.preloaded import add_entries, preloaded
from tests.dashboards import Dashboard, dashboard
from tests.running import running

from puf_server.runtime.server import Server

CLIENTS, ROUNDS = 1000, 10_000
# Memory that two measurements of the same page may differ by.
SLACK_BYTES = 2_000_000


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return preloaded(tmp_path_factory.mktemp("load") / "state", clients=CLIENTS, rounds=ROUNDS)


@pytest.fixture(scope="module")
def server(state: Path) -> Iterator[Server]:
    with running(state) as server:
        yield server


@pytest.fixture(scope="module")
def shown(server: Server) -> Iterator[Dashboard]:
    with dashboard(server) as shown:
        while f"of {ROUNDS + 1:,} entries" not in (text := shown.ask("/audit").text) and "Chain verified" not in text:
            pass
        yield shown


def drawn(page: Any) -> None:
    page.locator("[data-chart] canvas").nth(2).wait_for()


def test_the_overview_shows_all_rounds_with_few_points(new_page: Open, shown: Dashboard) -> None:
    page = new_page()
    page.goto(f"{shown.url}/")
    drawn(page)
    interactive = page.evaluate("performance.getEntriesByType('navigation')[0].domInteractive")
    print(f"interactive after {interactive:.0f} ms, charts drawn after {page.evaluate('performance.now()'):.0f} ms")
    columns = page.evaluate("fetch('/charts.json').then((reply) => reply.json())")
    assert len(columns["rounds"]) <= 1000
    assert columns["rounds"][-1] == ROUNDS
    assert len(columns["marks"]) == ROUNDS // 100
    label = page.locator('[data-chart="score"]').get_attribute("aria-label")
    assert f"to {ROUNDS}" in label


def test_a_thousand_clients_are_searched_and_paged(new_page: Open, shown: Dashboard) -> None:
    page = new_page()
    page.goto(f"{shown.url}/clients")
    assert page.locator("#clients tbody tr").count() == 50
    assert f"Page 1 of {CLIENTS // 50 + 1}" in page.locator(".pager").inner_text()
    page.get_by_role("link", name="Next").click()
    page.locator("tbody th", has_text="clinic-0050").wait_for()
    page.get_by_label("State").select_option("held")
    page.get_by_role("button", name="Show").click()
    page.locator("#clients p", has_text="1 client found").wait_for()
    assert "announces too much" in page.locator("#clients tbody").inner_text()


def test_rounds_and_entries_are_paged(new_page: Open, shown: Dashboard) -> None:
    page = new_page()
    page.goto(f"{shown.url}/rounds?before=51")
    assert page.locator("#rounds tbody tr").count() == 50
    assert page.get_by_role("link", name="Older").count() == 0
    page.get_by_role("link", name="Newest").click()
    page.locator("tbody th", has_text=str(ROUNDS)).wait_for()
    page.goto(f"{shown.url}/audit?round=77")
    assert page.locator("#entries tbody tr").count() == 1


def test_memory_stays_flat_over_ten_thousand_events(new_page: Open, shown: Dashboard, state: Path) -> None:
    page = new_page()
    page.goto(f"{shown.url}/")
    drawn(page)
    page.locator("#connection", has_text="live").wait_for()
    tools = page.context.new_cdp_session(page)

    def more(count: int) -> float:
        """The page's memory after so many more events."""
        newest = int(page.locator("#events li").first.get_attribute("data-number"))
        for start in range(0, count, 500):
            add_entries(state, 500, text="x" * 200)
            page.locator(f'#events li[data-number="{newest + start + 500}"]').wait_for()
        tools.send("HeapProfiler.collectGarbage")
        return float(tools.send("Runtime.getHeapUsage")["usedSize"])

    before = more(2000)
    after = more(8000)
    print(f"heap {before / 1e6:.2f} MB after 2,000 events, {after / 1e6:.2f} MB after 10,000")
    assert page.locator("#events li").count() == 50
    assert after - before < SLACK_BYTES
    numbers = [int(n) for n in page.eval_on_selector_all("#events li", "items => items.map(i => i.dataset.number)")]
    assert numbers == list(range(numbers[0], numbers[0] - 50, -1))
