"""Leases of shards."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from puf_common.errors import Forgotten, NotFound, NotNow, TooMuch
from puf_server.core import shards as leases
from puf_server.core.state.members import MemberStatus
from tests.server.core.builders import Federation, config, initial


def shards(n: int) -> Federation:
    return Federation(config(plan={"shards": n}))


def lease(f: Federation, name: str, wish: int | None = None) -> int:
    state, shard = leases.lease(f.state, f.config, name, wish, f.now)
    f.state = state
    return shard


def release(f: Federation, name: str) -> int:
    state, shard = leases.release(f.state, name, f.now)
    f.state = state
    return shard


def mark(f: Federation, name: str, status: MemberStatus) -> None:
    from dataclasses import replace

    f.state = f.state.with_member(replace(f.state.members[name], status=status))


def test_a_name_keeps_its_shard_and_a_wish_is_granted_where_it_is_free() -> None:
    f = shards(4)
    assert lease(f, "anna", wish=2) == 2
    assert lease(f, "bert") == 0
    assert lease(f, "cleo", wish=2) == 1
    assert lease(f, "dora", wish=99) == 3
    assert [lease(f, name) for name in ("dora", "cleo", "bert", "anna")] == [3, 1, 0, 2]
    assert lease(f, "anna", wish=0) == 2
    assert [note.event for note in f.state.notes] == ["shard.leased"] * 4


def test_a_federation_without_free_shards_refuses() -> None:
    f = shards(1)
    lease(f, "anna")
    with pytest.raises(TooMuch, match="all 1 shards are leased"):
        lease(f, "bert")
    with pytest.raises(NotNow, match="leases no shards"):
        leases.lease(initial(config()), config(), "anna", None, 0.0)


def test_the_shard_of_a_forgotten_name_stays_leased_until_the_operator_releases_it() -> None:
    f = shards(2)
    lease(f, "anna"), lease(f, "bert")
    f.join("anna", "bert")
    with pytest.raises(NotNow, match="anna is a member"):
        release(f, "anna")
    mark(f, "anna", MemberStatus.FORGOTTEN)
    # A forgotten name still finds its shard, to measure for its ticket.
    assert lease(f, "anna") == 0
    with pytest.raises(TooMuch):
        lease(f, "cleo")
    assert release(f, "anna") == 0
    with pytest.raises(Forgotten):
        lease(f, "anna")
    assert lease(f, "cleo") == 0
    with pytest.raises(NotFound, match="anna leases no shard"):
        release(f, "anna")
    mark(f, "bert", MemberStatus.READMITTED)
    assert lease(f, "bert") == 1


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.none() | st.integers(0, 9), st.booleans()), max_size=40))
def test_no_two_names_share_a_shard(events: list[tuple[str, int | None, bool]]) -> None:
    f = shards(4)
    for name, wish, ends in events:
        held = f.state.leases.get(name)
        try:
            shard = release(f, name) if ends else lease(f, name, wish)
        except (TooMuch, NotFound):
            continue
        assert held is None or shard == held
        assert 0 <= shard < 4
        assert len(set(f.state.leases.values())) == len(f.state.leases)
