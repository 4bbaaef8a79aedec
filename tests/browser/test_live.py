"""Real processes in a real browser: a request from filing to its receipt, and connections that break."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.browser.conftest import Open
from tests.e2e.conftest import trained
from tests.e2e.federation import SECONDS, Federation, command, opened

from puf_common.receipts import signed_receipt
from puf_lab.federations.processes import DashboardProcess, ServerProcess
from puf_lab.spec.federation import client_name

pytestmark = pytest.mark.e2e
__all__ = ["trained"]

TARGET = 3


class Shown:
    """`puf-server dashboard` in its own process. It can be killed and started again at the same address."""

    def __init__(self, federation: Federation) -> None:
        self._federation = federation
        self.start(0)

    def start(self, port: int) -> None:
        state, log = self._federation.directory / "server", self._federation.directory / "logs" / "dashboard.log"
        self.process = DashboardProcess(state, log, port)
        self._federation.stack.enter_context(self.process)
        self.url = self.process.url

    def kill(self) -> None:
        self.process.send(signal.SIGKILL)
        self.process.wait(20)


@pytest.fixture
def federation(trained: Path, tmp_path: Path) -> Iterator[Federation]:
    with opened(tmp_path / "federation", of=trained) as federation:
        federation.fleet()
        yield federation


@pytest.fixture
def shown(federation: Federation) -> Shown:
    return Shown(federation)


def audited(federation: Federation) -> list[tuple[int, str]]:
    """Number and event of every entry, as the audit command prints them."""
    words = ["puf-server", "audit", "show", "--state", str(federation.directory / "server"), "--json"]
    lines = [json.loads(line) for line in command(words).out.splitlines()]
    return [(line["line"], line["event"]) for line in lines]


def listed(page: Any) -> list[tuple[int, str]]:
    """Number and event of every entry in the list of events, oldest first."""
    script = "items => items.map(i => [Number(i.dataset.number), i.querySelector('b').textContent])"
    return [(number, event) for number, event in reversed(page.eval_on_selector_all("#events li", script))]


def live(page: Any) -> None:
    page.locator("#connection", has_text="live").wait_for(timeout=1000 * SECONDS)


def until_equal(page: Any, federation: Federation, first: int) -> None:
    """Waits until the list shows the newest entry, then compares it with the log from the first entry that it showed."""
    newest = audited(federation)[-1][0]
    page.locator(f'#events li[data-number="{newest}"]').wait_for(timeout=1000 * SECONDS)
    assert listed(page) == [entry for entry in audited(federation) if first <= entry[0] <= newest]


def train(federation: Federation, rounds: int) -> None:
    federation.idle(federation.server.control.extend(rounds))


def test_a_request_appears_and_proceeds_to_its_receipt(
    federation: Federation, shown: Shown, new_page: Open, tmp_path: Path
) -> None:
    requests, overview = new_page(), new_page()
    requests.goto(f"{shown.url}/requests")
    overview.goto(f"{shown.url}/")
    live(requests)
    live(overview)
    command_running = federation.unlearn(TARGET, "--reference", "case <7>")
    row = requests.locator("#requests tbody tr", has_text=client_name(TARGET))
    row.wait_for(timeout=1000 * SECONDS)
    filed_at = federation.ticket(TARGET).history[0].at
    print(f"the request was visible {time.time() - filed_at:.2f} s after it was filed")
    assert "case <7>" in row.inner_text()
    row.get_by_role("link").click()
    requests.locator("h1 .state", has_text="completed").wait_for(timeout=1000 * SECONDS)
    assert command_running.wait(SECONDS) == 0
    states = requests.locator(".timeline .state").all_inner_texts()
    assert states == ["pending", "scheduled", "applied", "recovering", "completed"]
    requests.locator("#verified", has_text="VALID.").wait_for()
    assert "INVALID" not in requests.locator("#verified").inner_text()
    check_receipt_file(requests, federation, tmp_path)
    overview.locator("#events li", has_text="ticket.completed").wait_for(timeout=1000 * SECONDS)
    assert overview.locator("#now dt", has_text="Open requests").locator("xpath=../dd[1]").inner_text() == "0"


def check_receipt_file(page: Any, federation: Federation, tmp_path: Path) -> None:
    """The downloaded file verifies, here and in the browser. No byte of it can be changed."""
    with page.expect_download() as started:
        page.locator("#receipt-file").click()
    path = tmp_path / started.value.suggested_filename
    started.value.save_as(path)
    content = path.read_bytes()
    assert signed_receipt.read(content).client == client_name(TARGET)
    result = page.locator("#checked")

    def check(changed: bytes) -> str:
        page.evaluate("document.getElementById('checked').replaceChildren()")
        page.set_input_files("#check", {"name": "r.json", "mimeType": "application/json", "buffer": changed})
        result.locator("b").wait_for()
        return str(result.inner_text())

    assert check(content).startswith("VALID.")
    for place in (0, 5, content.index(b'"accuracy"') + 14, len(content) // 2, len(content) - 10, len(content) - 1):
        changed = bytearray(content)
        changed[place] ^= 1
        assert check(bytes(changed)).startswith("INVALID:"), place
    spaced = content.replace(b'": ', b'":  ', 1)
    assert check(spaced).startswith("INVALID:")
    assert check(content[:-1]).startswith("INVALID:")
    assert check(content).startswith("VALID.")


def test_no_event_is_lost_or_doubled_when_the_server_is_killed(
    federation: Federation, shown: Shown, new_page: Open
) -> None:
    page, other = new_page(), new_page()
    page.goto(f"{shown.url}/")
    live(page)
    first = listed(page)[0][0]
    train(federation, 1)
    server = federation.server
    server.send(signal.SIGKILL)
    server.wait(20)
    page.locator("#connection", has_text="server not reachable").wait_for(timeout=1000 * SECONDS)
    other.goto(f"{shown.url}/clients")
    other.locator("h1", has_text="The server does not answer").wait_for()
    started = ServerProcess(
        federation.directory / "server",
        federation.directory / "logs" / "server.log",
        listen=server.address,
        operator="127.0.0.1:0",
    )
    federation.server = federation.stack.enter_context(started)
    live(page)
    # The page that had nothing to show loads itself again.
    other.locator("h1", has_text="Clients").wait_for(timeout=1000 * SECONDS)
    train(federation, 1)
    until_equal(page, federation, first)


def test_no_event_is_lost_or_doubled_when_the_dashboard_is_killed(
    federation: Federation, shown: Shown, new_page: Open
) -> None:
    page = new_page()
    page.goto(f"{shown.url}/")
    live(page)
    first = listed(page)[0][0]
    shown.kill()
    page.locator("#connection", has_text="reconnecting").wait_for(timeout=1000 * SECONDS)
    # The federation does not need the dashboard.
    train(federation, 1)
    shown.start(shown.process.port)
    live(page)
    train(federation, 1)
    until_equal(page, federation, first)


def test_the_dashboard_ends_in_order_and_says_what_is_wrong(
    federation: Federation, shown: Shown, new_page: Open
) -> None:
    page = new_page()
    page.goto(f"{shown.url}/")
    live(page)
    assert shown.process.end() == 0
    taken = command(["puf-server", "dashboard", "--web", federation.server.address])
    assert (taken.code, "Address already in use" in taken.err) == (2, True)
    open_to_all = command(["puf-server", "dashboard", "--web", "0.0.0.0:0"])
    assert "give --web-cert, --web-key and --web-token-file" in open_to_all.err
