"""A client's own last models: on its disk, of the rounds they are of, and gone when it is forgotten."""

from __future__ import annotations

from pathlib import Path

import pytest

from puf_client.state.directory import StateDir
from puf_client.state.local_models import LastModels
from puf_common.errors import NotFound


@pytest.fixture
def state(tmp_path: Path) -> StateDir:
    return StateDir(tmp_path / "client")


def test_the_two_newest_are_kept(state: StateDir) -> None:
    kept = LastModels(state)
    for number in (8, 9, 10):
        kept.keep(1, number, bytearray(f"{number:4}".encode()))
    assert kept.of_round(1, 10, 4) == b"  10"
    assert kept.of_round(1, 9, 4) == b"   9"
    for membership, number, nbytes in ((1, 8, 4), (2, 10, 4), (1, 10, 5)):
        with pytest.raises(NotFound, match=f"has not kept its own model of round {number}"):
            kept.of_round(membership, number, nbytes)


def test_nobody_else_can_read_them(state: StateDir) -> None:
    LastModels(state).keep(1, 1, b"1234")
    [path] = (state.path / "last-models").iterdir()
    assert path.stat().st_mode & 0o077 == 0


def test_a_client_that_is_forgotten_has_none_left(state: StateDir) -> None:
    LastModels(state).keep(1, 1, b"1234")
    state.mark_forgotten(membership=1)
    assert not (state.path / "last-models").exists()
    # Asking twice, and asking where there are none, changes nothing.
    LastModels(state).forget()
