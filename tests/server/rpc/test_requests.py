"""The request handlers without a network."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.forgotten import OnDisk, trained_state
from tests.running import TINY, make_state, tiny_config, tiny_payload
from tests.server.local import Local

import puf_server.rpc.requests
from puf_common.errors import InvalidArgument, Mismatch, NotFound, PufError, Superseded
from puf_common.tensors.manifest import MODEL
from puf_common.v1 import federation_pb2 as fed
from puf_common.v1 import tickets_pb2 as tk
from puf_server.ingest.transfer_statistics import TransferRate

NAMES = ("a", "b", "c")


@pytest.fixture
def local(tmp_path: Path) -> Iterator[Local]:
    local = Local(make_state(tmp_path / "state", tiny_config(plan={"min_clients": 3, "shards": 4})))
    yield local
    local.engine.close()


def session(local: Local, name: str) -> str:
    return local.engine.state.members[name].session


def test_the_description_is_that_of_the_federation(local: Local) -> None:
    about = local.handlers.describe(fed.DescribeRequest())
    assert (about.federation_id, about.model, about.rounds_planned) == ("f-test", "tiny", 2)
    assert about.manifest.fingerprint == TINY.fingerprint
    assert about.recipe.fingerprint == local.engine.config.recipe_fingerprint()
    assert about.server_key == local.engine.store.key.public


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"manifest_fingerprint": b"x"}, Mismatch),
        ({"recipe_fingerprint": b"x"}, Mismatch),
        ({"instance": ""}, InvalidArgument),
    ],
)
def test_a_join_that_does_not_fit_changes_nothing(local: Local, fields: dict[str, Any], error: type[PufError]) -> None:
    with pytest.raises(error):
        local.handlers.join("a", local.join_request("a", **fields))
    assert not local.engine.state.members


@pytest.mark.parametrize("name", ["", "-a", "a/b", "a" * 65, "ä"])
def test_a_name_that_could_harm_file_names_is_refused(local: Local, name: str) -> None:
    with pytest.raises(InvalidArgument):
        local.handlers.join(name, local.join_request("a"))
    with pytest.raises(InvalidArgument):
        local.handlers.lease_shard(name, fed.LeaseShardRequest())


def test_a_shard_is_leased_once_per_name(local: Local) -> None:
    first = local.handlers.lease_shard("a", fed.LeaseShardRequest())
    assert first == local.handlers.lease_shard("a", fed.LeaseShardRequest())
    wished = local.handlers.lease_shard("b", fed.LeaseShardRequest(wish=3))
    assert (first.shards, wished.shard) == (4, 3)


class TwoJoins:
    """A second worker of the same client joins at the moment when the first one's join is saved."""

    def __init__(self, local: Local) -> None:
        self._local = local
        self.first_saved, self.second_done = threading.Event(), threading.Event()

    def hit(self, point: str) -> None:
        if point == "join.after_persist" and threading.current_thread().name.startswith("first"):
            self.first_saved.set()
            assert self.second_done.wait(20)

    def first(self) -> fed.JoinReply:
        return self._local.handlers.join("a", self._local.join_request("a", instance="first"))

    def second(self) -> fed.JoinReply:
        assert self.first_saved.wait(20)
        try:
            return self._local.handlers.join("a", self._local.join_request("a", instance="second"))
        finally:
            self.second_done.set()


def test_of_two_joins_at_the_same_time_each_gets_its_own_session(local: Local, monkeypatch: pytest.MonkeyPatch) -> None:
    joins = TwoJoins(local)
    monkeypatch.setattr(puf_server.rpc.requests, "hit", joins.hit)
    with ThreadPoolExecutor(1, "first") as one, ThreadPoolExecutor(1, "second") as other:
        first, second = one.submit(joins.first), other.submit(joins.second)
        replies = first.result(20), second.result(20)
    assert replies[0].session != replies[1].session
    assert session(local, "a") == replies[1].session
    with pytest.raises(Superseded):
        local.handlers.heartbeat("a", fed.HeartbeatRequest(session=replies[0].session))


def test_a_heartbeat_tells_whether_the_training_is_still_wanted(local: Local) -> None:
    local.join(*NAMES)
    reply = local.handlers.work("a", session(local, "a"))
    assert reply is not None
    beat = fed.HeartbeatRequest(session=session(local, "a"), training_id=reply.train.training_id, activity="training")
    assert not local.handlers.heartbeat("a", beat).abandon_training
    assert local.engine.presence.activity["a"] == "training"
    local.submit("a", 0.1)
    assert local.handlers.heartbeat("a", beat).abandon_training
    with pytest.raises(NotFound):
        local.handlers.heartbeat("nobody", beat)


def test_work_is_given_once_it_exists_and_ends_with_the_federation(local: Local) -> None:
    local.join("a", "b")
    assert local.handlers.work("a", session(local, "a")) is None
    local.join("c")
    reply = local.handlers.work("a", session(local, "a"))
    assert reply is not None
    assert (reply.train.key.round, reply.train.key.part) == (1, fed.PART_MAIN)
    local.engine.call(lambda state, now: (replace(state, stopping=True), None))
    reply = local.handlers.work("a", session(local, "a"))
    assert reply is not None
    assert reply.leave.reason == fed.LeaveOrder.REASON_STOPPED


def test_a_client_that_declines_is_not_waited_for_and_an_old_key_changes_nothing(local: Local) -> None:
    local.join(*NAMES)
    reply = local.handlers.work("a", session(local, "a"))
    assert reply is not None
    key = reply.train.key
    old = fed.WorkKey(membership=key.membership, round=key.round, attempt=key.attempt + 1, part=key.part)
    local.handlers.decline("a", fed.DeclineWorkRequest(session=session(local, "a"), key=old, reason="no memory"))
    assert local.engine.state.round is not None
    assert not local.engine.state.round.declined
    local.handlers.decline("a", fed.DeclineWorkRequest(session=session(local, "a"), key=key, reason="no memory"))
    assert local.engine.state.round.declined == {"a/main": "no memory"}


def test_a_model_is_served_with_its_header_in_chunks(local: Local, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(puf_server.rpc.requests, "CHUNK_BYTES", 16)
    local.join("a")
    model = local.handlers.model_for("a", 0)
    header = local.handlers.model_header(model)
    assert header.byte_length == TINY.nbytes(MODEL)
    assert b"".join(chunk.data for chunk in local.handlers.model_chunks(model)) == bytes(tiny_payload())
    with pytest.raises(NotFound):
        local.handlers.model_for("a", 5)
    with pytest.raises(NotFound):
        local.handlers.model_for("stranger", 0)


def test_a_client_sees_its_own_tickets_newest_first_and_no_other_ones(local: Local) -> None:
    local.join(*NAMES)
    ticket = local.forget("a")
    assert [t.id for t in local.handlers.tickets.list_my_tickets("a").tickets] == [ticket]
    assert not local.handlers.tickets.list_my_tickets("b").tickets
    with pytest.raises(NotFound):
        local.handlers.tickets.view("b", ticket)
    reply = local.handlers.tickets.withdraw("a", fed.WithdrawUnlearningRequest(ticket_id=ticket))
    assert reply.ticket.state == tk.TICKET_STATE_WITHDRAWN


def test_the_transfer_rates_of_a_client_go_when_it_is_forgotten(tmp_path: Path) -> None:
    """This includes the rate of a transfer that ends after it."""
    with OnDisk(trained_state(tmp_path / "state")) as f:
        f.handlers.rates.record("cleo", 1.0, up=100)
        f.handlers.rates.record("anna", 1.0, down=100)
        f.handlers.rates.record("cleo", 1.0, down=100)
        assert f.handlers.rates.of("cleo") == TransferRate(100.0, 100.0)
        f.forget("cleo")
        assert f.handlers.rates.of("cleo") == TransferRate()
        f.handlers.rates.record("cleo", 1.0, up=100)
        f.handlers.rates.record("cleo", 1.0, down=100)
        assert f.handlers.rates.of("cleo") == TransferRate()
        assert f.handlers.rates.of("anna") == TransferRate(down=100.0)
