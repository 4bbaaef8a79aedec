"""The dashboard over real HTTP: what it refuses, what it answers, and its stream of events."""

from __future__ import annotations

import base64
import http.client
import json
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.dashboards import PATHS, Dashboard, dashboard
from tests.grpc.raw import Raw
from tests.running import make_state, running, tiny_config

from puf_server.dashboard.security import HEADERS, Access, allowed_hosts
from puf_server.runtime.server import Server


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("dashboard") / "state"
    return make_state(directory, tiny_config(title="clinics", plan={"min_clients": 2, "rounds": 1}))


@pytest.fixture(scope="module")
def server(state: Path) -> Iterator[Server]:
    with running(state) as server:
        yield server


@pytest.fixture(scope="module")
def shown(server: Server) -> Iterator[Dashboard]:
    with dashboard(server) as shown:
        connected(shown)
        yield shown


def connected(shown: Dashboard) -> None:
    """Waits until the dashboard has reached the server."""
    until = time.monotonic() + 20
    while shown.ask("/").code != 200:
        assert time.monotonic() < until


def until(shown: Dashboard, path: str, text: str) -> None:
    """Waits until the page contains the text."""
    end = time.monotonic() + 20
    while text not in shown.ask(path).text:
        assert time.monotonic() < end


METHODS = ("HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT", "PROPFIND", "get")


@pytest.mark.parametrize("method", METHODS)
def test_only_get_is_allowed_on_every_path(shown: Dashboard, method: str) -> None:
    for path in PATHS:
        answer = shown.ask(path, method)
        assert (answer.code, answer.headers["allow"]) == (405, "GET"), path


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example", "localhost.evil.example:80", "", "[::2]:80"]
)
def test_a_foreign_host_is_refused_on_every_path(shown: Dashboard, host: str) -> None:
    for path in PATHS:
        assert shown.ask(path, Host=host).code == 400, path


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1:7302", "LOCALHOST:1", "[::1]:7302"])
def test_names_of_this_machine_are_accepted(shown: Dashboard, host: str) -> None:
    assert shown.ask("/", Host=host).code == 200


def test_requests_of_other_sites_are_refused(shown: Dashboard) -> None:
    own = f"127.0.0.1:{shown.port}"
    assert shown.ask("/charts.json", Origin=f"http://{own}").code == 200
    for origin in ("http://evil.example", "null", f"https://{own}", "http://127.0.0.1:1", ""):
        assert shown.ask("/charts.json", Origin=origin).code == 403, origin
    foreign = {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "no-cors", "Sec_Fetch_Dest": "image"}
    assert shown.ask("/charts.json", **foreign).code == 403
    # A link on another page may be followed.
    link = {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "navigate", "Sec_Fetch_Dest": "document"}
    assert shown.ask("/", **link).code == 200
    assert shown.ask("/", **(link | {"Sec_Fetch_Dest": "iframe"})).code == 403


def test_every_answer_has_the_security_headers(shown: Dashboard) -> None:
    answers = [shown.ask(path) for path in PATHS]
    answers += [shown.ask("/", "POST"), shown.ask("/", Host="evil.example"), shown.ask("/", Origin="null")]
    for answer in answers:
        assert {name: answer.headers.get(name) for name in HEADERS} == HEADERS
        assert answer.headers["cache-control"] == "no-store"
    assert "unsafe" not in HEADERS["content-security-policy"]


def test_every_page_answers_and_unknown_things_are_not_found(shown: Dashboard) -> None:
    for path in ("/", "/requests", "/clients", "/rounds", "/models", "/audit"):
        answer = shown.ask(path)
        assert answer.code == 200
        assert "clinics" in answer.text
    for path in (
        "/requests/t-1",
        "/requests/t-1/receipt.json",
        "/no-such-page",
        "/assets/nothing.js",
        "/assets/..%2fapp.py",
    ):
        assert shown.ask(path).code == 404, path


def test_a_wrong_query_shows_the_page_without_it(shown: Dashboard) -> None:
    for path in (
        "/clients?page=0", "/clients?page=-1", "/clients?page=99999999999999999999", "/clients?state=nothing&q=%00%ff",
        "/rounds?before=x&kind=%22", "/audit?before=1e9&round=9999999999&q=%25_%5c", "/models?page=9", "/requests?state=open",
    ):  # fmt: skip
        assert shown.ask(path).code == 200, path


def test_a_token_is_needed_where_one_is_set(server: Server) -> None:
    token = "correct horse battery staple"
    with dashboard(server, access=Access(allowed_hosts("127.0.0.1"), token=token)) as shown:
        basic = base64.b64encode(f"anyone:{token}".encode()).decode()
        wrong = base64.b64encode(b"anyone:wrong").decode()
        for stated in (f"Bearer {token}", f"Basic {basic}"):
            assert shown.ask("/charts.json", Authorization=stated).code != 401
        for path in PATHS:
            answer = shown.ask(path)
            assert (answer.code, "Basic" in answer.headers["www-authenticate"]) == (401, True), path
        for stated in ("Bearer wrong", f"Basic {wrong}", "Basic %%%", token, f"Digest {token}", "Basic", "Bearer "):
            assert shown.ask("/", Authorization=stated).code == 401, stated
        assert token not in repr(Access(frozenset(), token=token))


def test_the_stream_continues_after_the_id_that_the_browser_got_last(server: Server, shown: Dashboard) -> None:
    def ids(blocks: list[str]) -> list[str]:
        return [line for block in blocks for line in block.splitlines() if line.startswith("id: ")]

    with Raw(server.port, "anna") as anna, Raw(server.port, "bert") as bert:
        anna.join()
        bert.join()
        anna.wait()
        opened = shown.events(5, Last_Event_ID="1")
        assert opened[0] == "retry: 1000"
        assert json.loads(opened[1].partition("data: ")[2]) == {"problem": ""}
        assert ids(opened) == ["id: 2", "id: 3", "id: 4"]
        last = json.loads(shown.events(4, Last_Event_ID="2")[-1].partition("data: ")[2])
        assert (last["number"], last["event"]) == (4, "round.opened")
        assert "anna, bert" in last["text"]


def test_an_id_that_no_entry_has_makes_the_page_load_again(shown: Dashboard) -> None:
    newest = json.loads(shown.ask("/audit").text.partition('data-after="')[2].partition('"')[0])
    blocks = shown.events(3, Last_Event_ID="999")
    assert blocks[-1].startswith(f"id: {newest}\nevent: reset")
    # Not a number: the stream begins now.
    assert shown.events(2, Last_Event_ID="x")[1].startswith("event: link")


def test_a_server_that_is_away_is_reported() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        target = f"127.0.0.1:{free.getsockname()[1]}"
    with dashboard(lambda: target) as shown:
        answer = shown.ask("/")
        assert answer.code == 503
        assert "The server does not answer" in answer.text
        assert json.loads(shown.events(2)[1].partition("data: ")[2])["problem"]
        assert shown.ask("/assets/x").code == 404


def test_another_log_in_place_of_the_known_one_is_reported(tmp_path: Path) -> None:
    first, second = (make_state(tmp_path / name, tiny_config()) for name in ("first", "second"))
    targets: list[str] = []
    with ExitStack() as stack:
        with running(first) as server:
            targets.append(f"127.0.0.1:{server.operator_port}")
            shown = stack.enter_context(dashboard(lambda: targets[-1]))
            connected(shown)
            until(shown, "/audit", "Chain verified")
        with running(second) as other:
            targets.append(f"127.0.0.1:{other.operator_port}")
            connected(shown)
            until(shown, "/audit", "The chain is broken")
            assert "the log was written again" in shown.ask("/audit").text


def test_streams_are_bounded(shown: Dashboard) -> None:
    opened = []
    codes = []
    for _ in range(66):
        connection = http.client.HTTPConnection("127.0.0.1", shown.port, timeout=20)
        connection.request("GET", "/events")
        reply = connection.getresponse()
        codes.append(reply.status)
        if reply.status == 200:
            reply.readline()
        opened.append((connection, reply))
    assert codes.count(200) == 64
    assert codes[-1] == 503
    assert shown.ask("/").code == 200
    for connection, reply in opened:
        reply.close()
        connection.close()
