"""The usage of samples: exact for every id, stored across restarts, without naming samples."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from puf_client.state.directory import StateDirectory
from puf_client.state.usage import SampleUsage, Used
from puf_common.errors import StorageCorrupted

IDS = [f"patient-{i}" for i in range(8)]


@pytest.fixture
def state(tmp_path: Path) -> StateDirectory:
    return StateDirectory.of("fed-1", "clinic-7", tmp_path)


def note(state: StateDirectory, chosen: list[int], number: int, *, unlearning: bool = False) -> None:
    SampleUsage(state).note(IDS, np.array(chosen, dtype=np.intp), number=number, unlearning=unlearning)


def test_at_first_no_sample_was_used(state: StateDirectory) -> None:
    assert SampleUsage(state).look_up(IDS[0]) is None
    assert not state.path.exists()


def test_first_and_last_round_of_each_sample(state: StateDirectory) -> None:
    for number in (3, 4, 5):
        note(state, [0, 1, 2], number)
    # Sample 0 is forgotten; the other samples stay in training.
    note(state, [0], 6, unlearning=True)
    note(state, [1, 2], 6)
    note(state, [1, 2], 9)
    again = SampleUsage(StateDirectory(state.path))
    assert again.look_up(IDS[0]) == Used(trained=(3, 5), unlearned=(6, 6))
    assert again.look_up(IDS[1]) == Used(trained=(3, 9))
    assert again.look_up(IDS[3]) is None


def test_a_set_is_written_once(state: StateDirectory) -> None:
    usage = SampleUsage(state)
    for number in range(1, 20):
        usage.note(IDS, np.arange(8), number=number, unlearning=False)
    assert len(list((state.path / "used").iterdir())) == 2
    before = {p: p.stat().st_mtime_ns for p in (state.path / "used").iterdir()}
    # The same round after a lost answer adds nothing.
    usage.note(IDS, np.arange(8), number=19, unlearning=False)
    assert {p: p.stat().st_mtime_ns for p in (state.path / "used").iterdir()} == before


def test_no_file_names_a_sample(state: StateDirectory) -> None:
    note(state, [0, 1], 1)
    assert not any(b"patient" in p.read_bytes() for p in state.path.rglob("*") if p.is_file())


@pytest.mark.parametrize("harm", [lambda p: p.unlink(), lambda p: p.write_bytes(b"short")])
def test_a_damaged_file_is_named_and_does_not_mean_unused(state: StateDirectory, harm: object) -> None:
    note(state, [0, 1], 1)
    (path,) = (state.path / "used").glob("*.ids")
    assert callable(harm)
    harm(path)
    with pytest.raises(StorageCorrupted, match=path.name):
        SampleUsage(state).look_up(IDS[0])


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.sets(st.integers(0, 7), min_size=1), st.integers(1, 50), st.booleans()), max_size=8))
def test_lookups_equal_those_of_a_dictionary(
    tmp_path_factory: pytest.TempPathFactory, history: list[tuple[set[int], int, bool]]
) -> None:
    state = StateDirectory(tmp_path_factory.mktemp("usage"))
    expected: dict[tuple[int, bool], list[int]] = {}
    for chosen, number, unlearning in history:
        note(state, sorted(chosen), number, unlearning=unlearning)
        for i in chosen:
            expected.setdefault((i, unlearning), []).append(number)
    for i, name in enumerate(IDS):
        spans = [
            (min(rounds), max(rounds)) if (rounds := expected.get((i, unlearning))) else None
            for unlearning in (False, True)
        ]
        assert (SampleUsage(state).look_up(name) or Used()) == Used(*spans)


def test_a_record_belongs_to_the_memberships_in_which_it_was_trained_on(state: StateDirectory) -> None:
    usage = SampleUsage(state)
    usage.note(IDS, np.array([0, 1]), number=1, unlearning=False, membership=1)
    usage.note(IDS, np.array([0, 1]), number=2, unlearning=True, membership=1)
    usage.note(IDS, np.array([1, 2]), number=5, unlearning=False, membership=2)

    def hashes(*chosen: int) -> frozenset[str]:
        return frozenset(state.salted(IDS[i]) for i in chosen)

    assert usage.trained(1) == hashes(0, 1)
    assert usage.trained(2) == hashes(1, 2)
    assert usage.trained(3) == frozenset()
    # Using samples to unlearn them is not training.
    usage.note(IDS, np.array([7]), number=6, unlearning=True, membership=3)
    assert usage.trained(3) == frozenset()


def test_a_record_of_an_older_version_belongs_to_every_membership(state: StateDirectory) -> None:
    note(state, [0, 1], 1)
    (path,) = (state.path / "used").glob("*.json")
    path.write_text('{"trained": [1, 1], "unlearned": null}')
    assert len(SampleUsage(state).trained(2)) == 2
    note(state, [0, 1], 4)
    assert len(SampleUsage(state).trained(2)) == 2
    assert SampleUsage(state).look_up(IDS[0]) == Used(trained=(1, 4))
