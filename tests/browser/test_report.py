"""The report of the lab in a real browser: its tables are sorted by a click, with units and missing values in order."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from tests.browser.conftest import Open

from puf_lab.reporting.html import Part, render
from puf_lab.reporting.sheet import MISSING, Sheet, operations, size

COSTS = [("C", 9.5e5, 2e15), ("A", 1.2e9, None), ("B", 3.4e6, 5e9)]


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    """A server with a report of one table."""
    rows = [[name, size(nbytes), MISSING if count is None else operations(count)] for name, nbytes, count in COSTS]
    sheet = Sheet("costs", "What it costs", ["method", "bytes", "operations"], rows)
    (tmp_path / "report.html").write_text(render([Part("Title", "", [], [], [sheet], [])]))
    handler = partial(SimpleHTTPRequestHandler, directory=str(tmp_path))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/report.html"
        server.shutdown()
        thread.join()


def test_a_click_on_a_head_sorts_the_table(address: str, new_page: Open) -> None:
    page = new_page()
    page.goto(address)

    def order() -> str:
        return "".join(page.locator("tbody tr td:first-child").all_inner_texts())

    def click(name: str) -> str:
        page.locator("th button", has_text=name).click()
        return order()

    assert order() == "CAB"
    assert [click("bytes"), click("bytes")] == ["CBA", "ABC"], "950 kB, 3.4 MB, 1.2 GB, and back"
    assert [click("operations"), click("operations")] == ["BCA", "CBA"], "5 GFLOP, 2 PFLOP; a missing value stays last"
    assert [click("method"), click("method")] == ["ABC", "CBA"]
    assert page.locator("th[aria-sort=descending]").inner_text().startswith("method")
