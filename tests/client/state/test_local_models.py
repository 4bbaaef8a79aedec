"""The client's local models: stored by round, and deleted when the client is forgotten."""

from __future__ import annotations

from pathlib import Path

import pytest

from puf_client.state.directory import StateDirectory
from puf_client.state.local_models import LocalModels
from puf_common.errors import NotFound


@pytest.fixture
def state(tmp_path: Path) -> StateDirectory:
    return StateDirectory(tmp_path / "client")


def test_the_two_newest_are_kept(state: StateDirectory) -> None:
    kept = LocalModels(state)
    for number in (8, 9, 10):
        kept.write(1, number, bytearray(f"{number:4}".encode()))
    assert kept.read(1, 10, 4) == b"  10"
    assert kept.read(1, 9, 4) == b"   9"
    for membership, number, nbytes in ((1, 8, 4), (2, 10, 4), (1, 10, 5)):
        with pytest.raises(NotFound, match=f"has not stored its local model of round {number}"):
            kept.read(membership, number, nbytes)


def test_only_the_user_can_read_them(state: StateDirectory) -> None:
    LocalModels(state).write(1, 1, b"1234")
    [path] = (state.path / "last-models").iterdir()
    assert path.stat().st_mode & 0o077 == 0


def test_a_forgotten_client_has_no_models_left(state: StateDirectory) -> None:
    LocalModels(state).write(1, 1, b"1234")
    state.mark_forgotten(membership=1)
    assert not (state.path / "last-models").exists()
    # Deleting twice, or without models, changes nothing.
    LocalModels(state).delete()
