"""State directories of version 0.1.0 open with the current version without loss, and their work can be continued."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from puf_client.cli.main import main as client_main
from puf_client.state.directory import StateDirectory
from puf_common.config.exit_codes import Exit
from puf_common.errors import Forgotten, NotAuthenticated
from puf_common.receipts import signed_receipt
from puf_common.receipts.content import canonical
from puf_common.v1 import federation_pb2 as fed
from puf_common.v1 import tickets_pb2 as tk
from puf_server.admission.revocations import Revocations
from puf_server.admission.tokens import Tokens
from puf_server.cli.main import main as server_main
from puf_server.engine import receipts
from tests.fixtures.driver import Clock, Opened, client_facts

FIXTURES = Path(__file__).parent / "fixtures" / "state_0_1"
RECEIPT = FIXTURES / "receipt.json"
SERVERS = sorted(p.name for p in FIXTURES.glob("server-*"))
# Directories with a round under way.
BUSY = ["server-auxiliary", "server-collecting", "server-history", "server-unlearning"]
IDS = [f"sample-{i}" for i in range(10)]


class Old:
    """A copy of a fixture, as the version that wrote it left it on disk."""

    def __init__(self, name: str, root: Path) -> None:
        self.path = root / name
        self.expected: dict[str, Any] = json.loads((FIXTURES / name / "expected.json").read_text())
        shutil.copytree(FIXTURES / name, self.path, ignore=shutil.ignore_patterns("expected.json"))
        if name.startswith("server-"):
            # Git keeps no empty directory.
            (self.path / "spool").mkdir(exist_ok=True)
        if name == "server-collecting":
            # Version 0.1.0 lowered `min_clients` by itself when clients left. The operator does it now.
            description = self.path / "federation.json"
            description.write_text(description.read_text().replace('"min_clients": 6', '"min_clients": 4'))
        for path in (self.path, *self.path.rglob("*")):
            path.chmod(0o700 if path.is_dir() else 0o600)

    def opened(self) -> Opened:
        return Opened(self.path, self.clock)

    @property
    def clock(self) -> Clock:
        return Clock(self.expected["clock"])

    def files(self) -> dict[str, bytes]:
        """Models, spooled updates and history."""
        folders = [self.path / folder for folder in ("models", "spool", "history")]
        return {f"{p.parent.name}/{p.name}": p.read_bytes() for folder in folders for p in folder.glob("*")}


@pytest.fixture(params=SERVERS)
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Old:
    return Old(request.param, tmp_path)


@pytest.fixture
def idle(tmp_path: Path) -> Old:
    return Old("server-idle", tmp_path)


def holds(expected: Any, found: Any, where: str = "") -> None:
    """Everything that is expected was found; a later version may report more fields."""
    if isinstance(expected, dict) and isinstance(found, dict):
        for key, value in expected.items():
            assert key in found, f"{where}.{key} is missing"
            holds(value, found[key], f"{where}.{key}")
    elif isinstance(expected, list) and isinstance(found, list):
        assert len(expected) == len(found), where
        for i, (value, other) in enumerate(zip(expected, found, strict=True)):
            holds(value, other, f"{where}[{i}]")
    else:
        assert found == expected, where


def printed(capsys: pytest.CaptureFixture[str]) -> str:
    return capsys.readouterr().out


def test_every_fixture_is_there() -> None:
    assert {*BUSY, "server-idle", "server-recovering"} == set(SERVERS)


# -- every server directory --------------------------------------------------------------------------------------------


def test_its_facts_are_the_same(server: Old) -> None:
    with server.opened() as f:
        holds(server.expected["facts"], f.facts())


def test_nothing_is_lost_when_it_opens(server: Old) -> None:
    before = server.files()
    for _ in range(2):
        with server.opened() as f:
            holds(server.expected["facts"], f.facts())
        assert server.files() == before


def test_its_audit_log_is_whole_before_and_after(server: Old, capsys: pytest.CaptureFixture[str]) -> None:
    head, state = server.expected["audit"], ["--state", str(server.path)]
    assert server_main(["audit", "verify", *state, "--json"]) == Exit.OK
    holds({"lines": head["line"], "head": head["hash"]}, json.loads(printed(capsys)))
    with server.opened() as f:
        f.join_again()
        f.run()
    assert server_main(["audit", "verify", *state]) == Exit.OK
    printed(capsys)
    assert server_main(["audit", "show", *state, "--json"]) == Exit.OK
    lines = [json.loads(line) for line in printed(capsys).splitlines()]
    assert {line["line"]: line["hash"] for line in lines}[head["line"]] == head["hash"]


def test_workers_keep_their_sessions(server: Old) -> None:
    with server.opened() as f:
        f.join_again()
        assert f.sessions == server.expected["facts"]["inner"]["sessions"]


def test_continued_work_gives_the_same_result(server: Old) -> None:
    """The models have the same bits as those that version 0.1.0 computed from the same directory."""
    with server.opened() as f:
        f.join_again()
        f.run()
        assert f.outcome() == server.expected["continued"]
    with server.opened() as f:
        assert f.outcome() == server.expected["continued"]


# -- rounds under way --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", BUSY)
def test_its_round_commits_with_the_spooled_updates(name: str, tmp_path: Path) -> None:
    old = Old(name, tmp_path)
    spooled = {path for path in old.files() if path.startswith("spool/")}
    with old.opened() as f:
        current = f.operator("Status").round
        assert (current.phase, current.received) == ("collecting", len(spooled))
        f.join_again()
        for client in old.expected["missing"]:
            assert spooled <= old.files().keys()
            f.submit(client)
        f.engine.fold_ready()
        done = next(r for r in f.operator("ListRounds").rounds if r.number == current.number)
        assert (done.phase, done.attempt) == ("committed", current.attempt)
        assert done.received == len(spooled) + len(old.expected["missing"])
        assert not spooled & old.files().keys()


def test_a_round_closes_on_quorum_where_the_missing_client_stays_away(tmp_path: Path) -> None:
    old, clock = Old("server-collecting", tmp_path), Clock(0.0)
    clock.now = old.expected["clock"]
    with Opened(old.path, clock) as f:
        number = f.operator("Status").round.number
        clock.now += f.engine.config.plan.absent_seconds + 1
        f.join("anna", "bert")
        f.engine.fold_ready()
        done = next(r for r in f.operator("ListRounds").rounds if r.number == number)
        assert (done.phase, done.received, done.expected) == ("committed", 2, 4)


def test_a_ticket_on_hold_waits_for_the_operator(tmp_path: Path) -> None:
    old = Old("server-collecting", tmp_path)
    held, pending = old.expected["held"], old.expected["pending"]
    with old.opened() as f:
        f.join_again()
        f.run()
        assert f.handlers.tickets.view(None, pending).state == tk.TICKET_STATE_COMPLETED
        assert f.handlers.tickets.view(None, held).state == tk.TICKET_STATE_PENDING
        assert f.handlers.tickets.view(None, held).held
        f.operator("Allow", ticket_id=held)
        f.run()
        assert f.handlers.tickets.view(None, held).state == tk.TICKET_STATE_COMPLETED
        assert signed_receipt.read(receipts.issue(f.engine, held)).ticket == held


def test_recovery_completes_and_deletes_the_withdrawn_models(tmp_path: Path) -> None:
    old = Old("server-recovering", tmp_path)
    ticket = old.expected["ticket"]
    with old.opened() as f:
        withdrawn = {m.version for m in f.operator("ListModels").models if m.status == "withdrawn"}
        assert len(withdrawn) == 2
        f.join_again()
        for client in old.expected["missing"]:
            assert f.handlers.tickets.view(None, ticket).state == tk.TICKET_STATE_RECOVERING
            f.evaluate(client)
        done = f.handlers.tickets.view(None, ticket)
        assert (done.state, done.recovered) == (tk.TICKET_STATE_COMPLETED, True)
        assert set(done.deleted_versions) == withdrawn
        assert not [path for path in old.files() if path.startswith(tuple(f"models/v{v:06d}-" for v in withdrawn))]
        shown = signed_receipt.read(receipts.issue(f.engine, ticket))
        assert shown.key.hex() == old.expected["facts"]["signing_key"]
        assert shown.content.as_json()["measured_by_client"]["unlearned"]["yeom"]["forget"]["members"] == 4


# -- receipts ----------------------------------------------------------------------------------------------------------


def test_a_kept_receipt_is_valid(idle: Old, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ticket, fingerprint = idle.expected["completed"]["whole"], idle.expected["fingerprint"]
    shown = signed_receipt.read(RECEIPT.read_bytes())
    assert (shown.ticket, shown.client, shown.federation) == (ticket, "cleo", "f-server-idle")
    assert shown.key_fingerprint == fingerprint
    assert shown.content.as_json() == idle.expected["receipts"][ticket]
    assert hashlib.sha256(canonical(shown.content.as_json())).hexdigest() == idle.expected["receipt_sha256"]
    root = Old("client", tmp_path).path
    for trust in (["--key", fingerprint], ["--state", str(root)]):
        assert client_main(["verify", str(RECEIPT), *trust]) == Exit.OK
        assert printed(capsys).startswith("VALID")
    command = ["audit", "verify", "--state", str(idle.path), "--receipt", str(RECEIPT)]
    assert server_main(command) == Exit.OK
    with idle.opened() as f:
        assert not f.handlers.tickets.present_receipt(
            "cleo", fed.PresentReceiptRequest(receipt=RECEIPT.read_bytes())
        ).reopened
        f.operator("Extend", rounds=1)
        f.join_again()
        f.run()
    assert server_main(command) == Exit.OK


@pytest.mark.parametrize("which", ["whole", "special", "samples", "operator"])
def test_a_receipt_that_is_issued_again_has_the_same_content(idle: Old, which: str) -> None:
    ticket = idle.expected["completed"][which]
    with idle.opened() as f:
        again = signed_receipt.read(receipts.issue(f.engine, ticket))
    assert again.key.hex() == idle.expected["facts"]["signing_key"]
    # Date, version and head of the log are those of the moment.
    expected = {
        k: v for k, v in idle.expected["receipts"][ticket].items() if k not in ("issued_at", "software", "audit")
    }
    holds(expected, again.content.as_json())


# -- membership and access ---------------------------------------------------------------------------------------------


def test_forgotten_and_readmitted_clients_keep_their_status(idle: Old) -> None:
    with idle.opened() as f:
        with pytest.raises(Forgotten):
            f.join("cleo", rejoin=True)
        with pytest.raises(Forgotten):
            f.join("emil")
        f.join("emil", rejoin=True)
        members = {c.name: c for c in f.operator("ListClients").clients}
        assert {name: members[name].membership for name in ("cleo", "emil", "finn")} == {
            "cleo": 1,
            "emil": 2,
            "finn": 2,
        }
        for name, shard in idle.expected["facts"]["inner"]["leases"].items():
            if name != "cleo":
                assert f.handlers.lease_shard(name, fed.LeaseShardRequest()).shard == shard
        assert f.handlers.lease_shard("nora", fed.LeaseShardRequest()).shard == 6


def test_tokens_and_revocations_are_still_valid(idle: Old) -> None:
    assert Tokens(idle.path, idle.clock).holder(idle.expected["token"]) == "anna"
    with pytest.raises(NotAuthenticated):
        Tokens(idle.path, idle.clock).holder("puf_another")
    revoked = Revocations(idle.path, idle.clock)
    revoked.require_not_revoked("anna")
    with pytest.raises(NotAuthenticated):
        revoked.require_not_revoked("mallory")
    assert set(revoked.value.serials) == {"1f"}


# -- clients -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["bert", "cleo"])
def test_a_client_directory_reports_the_same_facts(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old = Old("client", tmp_path)
    expected = old.expected[name]
    state = StateDirectory.of("f-server-idle", name, old.path)
    holds(expected, client_facts(state, IDS))
    assert all(signed_receipt.read(file).client == name for file in state.receipts())
    assert client_main(["data", "used", *IDS, "--name", name, "--state", str(old.path), "--json"]) == Exit.OK
    told = json.loads(printed(capsys))
    assert [t["excluded"] for t in told] == expected["excluded"]
    assert {t["id"]: [t["trained"], t["unlearned"]] for t in told} == expected["used"]


def test_a_client_directory_can_be_written_to(tmp_path: Path) -> None:
    old = Old("client", tmp_path)
    state = StateDirectory.of("f-server-idle", "bert", old.path)
    assert state.request_key(IDS[:3]) in old.expected["bert"]["requests"]
    state.settle([("prepared", "t-1", False)])
    assert not state.unsettled()
    assert state.excluded(IDS).tolist() == [i in (0, 1, 2, 6) for i in range(10)]
    state.mark_forgotten(membership=1)
    assert not (state.path / "last-models").exists()


def test_keys_tickets_and_receipts_of_clients_match_the_server(idle: Old, tmp_path: Path) -> None:
    root = Old("client", tmp_path).path
    bert, cleo = (StateDirectory.of("f-server-idle", name, root) for name in ("bert", "cleo"))
    with idle.opened() as f:
        for state in (bert, cleo):
            state.check_server_key(f.engine.store.key.public)
            (file,) = state.receipts()
            assert not f.handlers.tickets.present_receipt(
                state.path.name, fed.PresentReceiptRequest(receipt=file)
            ).reopened
        mine = f.handlers.tickets.list_my_tickets("bert").tickets
    known = {e.request_key: e.ticket_id for e in bert.exclusions() if e.ticket_id}
    assert {t.request.request_key: t.id for t in mine} == known
    assert cleo.forgotten is not None
    assert cleo.forgotten["ticket_id"] == idle.expected["completed"]["whole"]
