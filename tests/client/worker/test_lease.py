"""A leased shard stays the same, or the client stops."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest

from puf_client.options import LocalOptions
from puf_client.state.directory import StateDirectory
from puf_client.transport.base import Transport
from puf_client.worker.lease import leased
from puf_common.errors import Mismatch
from puf_common.v1 import federation_pb2 as pb


class Leasing:
    """A server that leases one shard and stores what clients ask for."""

    name = "anna"

    def __init__(self, shard: int, shards: int) -> None:
        self.reply = pb.LeaseShardReply(shard=shard, shards=shards)
        self.wishes: list[int | None] = []

    def lease_shard(self, request: pb.LeaseShardRequest) -> pb.LeaseShardReply:
        self.wishes.append(request.wish if request.HasField("wish") else None)
        return self.reply


@pytest.fixture
def state(tmp_path: Path) -> StateDirectory:
    return StateDirectory(tmp_path / "anna")


def ask(server: Leasing, state: StateDirectory, shard: str = "lease", *, new_membership: bool = False) -> str:
    options = LocalOptions(shard=shard)
    return leased(options, cast(Transport, server), state, new_membership=new_membership).shard


def test_a_named_shard_needs_no_lease(state: StateDirectory) -> None:
    server = Leasing(0, 3)
    assert ask(server, state, "2/3") == "2/3"
    assert server.wishes == []
    assert state.shard is None


def test_a_client_asks_for_the_shard_that_it_had(state: StateDirectory) -> None:
    server = Leasing(2, 3)
    assert ask(server, state) == "2/3"
    assert ask(server, state, "lease:1") == "2/3"
    assert server.wishes == [None, 2]
    assert state.shard == (2, 3)


def test_a_first_client_can_ask_for_a_shard(state: StateDirectory) -> None:
    server = Leasing(1, 3)
    assert ask(server, state, "lease:1") == "1/3"
    assert server.wishes == [1]


@pytest.mark.parametrize("other", [(1, 3), (2, 4)])
def test_another_shard_than_before_stops_the_client(state: StateDirectory, other: tuple[int, int]) -> None:
    ask(Leasing(2, 3), state)
    with pytest.raises(Mismatch, match=r"has worked on shard 2/3.*clients release"):
        ask(Leasing(*other), state)
    assert state.shard == (2, 3)


def test_a_new_membership_accepts_another_shard(state: StateDirectory) -> None:
    ask(Leasing(2, 3), state)
    server = Leasing(0, 3)
    assert ask(server, state, new_membership=True) == "0/3"
    assert server.wishes == [None]
    assert state.shard == (0, 3)
