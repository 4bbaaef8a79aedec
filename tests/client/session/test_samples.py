"""The samples of a session: what an assignment uses, and how the data differs from the record of training."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from puf_client.session.samples import CannotDo, Difference, KnownSamples
from puf_client.state.directory import StateDirectory
from puf_client.state.usage import SampleUsage
from puf_client.transport.base import Transport
from puf_common.v1 import federation_pb2 as pb

IDS = [f"patient-{i}" for i in range(8)]
# Settling needs the server only while a request is not filed yet.
NO_SERVER = cast(Transport, None)


@pytest.fixture
def state(tmp_path: Path) -> StateDirectory:
    return trained(StateDirectory.of("fed-1", "clinic-7", tmp_path), range(6))


def trained(state: StateDirectory, chosen: range | list[int], membership: int = 1) -> StateDirectory:
    SampleUsage(state).note(IDS, np.array(chosen), number=3, unlearning=False, membership=membership)
    return state


def exclude(state: StateDirectory, chosen: list[int]) -> frozenset[str]:
    ids = [IDS[i] for i in chosen]
    key = state.request_key(ids)
    state.prepare(key, ids)
    return state.filed(key, f"t-{key}").hashes


def samples(state: StateDirectory, chosen: range | list[int]) -> KnownSamples:
    return KnownSamples([IDS[i] for i in chosen], state, NO_SERVER)


def test_data_of_training_does_not_differ(state: StateDirectory) -> None:
    assert samples(state, range(6)).difference(1, None) is None
    # Earlier requests took samples out. Their data may still be there, or not.
    exclude(state, [0, 1])
    assert samples(state, range(6)).difference(1, None) is None
    assert samples(state, range(2, 6)).difference(1, None) is None


def test_another_membership_has_another_record(state: StateDirectory) -> None:
    assert samples(state, range(6)).difference(2, None) == Difference(0, 0, ())
    trained(state, [6, 7], membership=2)
    assert samples(state, [6, 7]).difference(2, None) is None


def test_further_samples_matter_to_a_request_for_everything_only(state: StateDirectory) -> None:
    grown = samples(state, range(8))
    assert grown.difference(1, None, grown=True) == Difference(6, 0, ("patient-6", "patient-7"))
    assert grown.difference(1, grown.hashes([0])) == Difference(6, 0, ("patient-6", "patient-7"))
    assert grown.difference(1, grown.hashes([0]), grown=True) is None
    # A request cannot name them: they were never trained on.
    assert grown.difference(1, grown.hashes([0, 7]), grown=True) == Difference(6, 0, ("patient-7",))


@settings(max_examples=60, deadline=None)
@given(*[st.sets(st.integers(0, 7), min_size=1)] * 2, st.sets(st.integers(0, 7)), st.booleans())
def test_a_difference_is_that_of_the_sets(
    tmp_path_factory: pytest.TempPathFactory, used: set[int], present: set[int], gone: set[int], whole: bool
) -> None:
    state = trained(StateDirectory(tmp_path_factory.mktemp("samples")), sorted(used))
    hashes = exclude(state, sorted(gone)) if gone else frozenset()
    found = samples(state, sorted(present)).difference(1, None if whole or not gone else hashes)
    # A request for samples needs them in the data. A request for everything does not need what was forgotten before.
    out = gone if whole else set()
    missing, unknown = (used - out) - present, present - used - out
    assert found == (
        Difference(len(used - out), len(missing), tuple(IDS[i] for i in sorted(unknown)))
        if missing or unknown
        else None
    )


def work(part: pb.Part, scale: float, request: str = "") -> pb.TrainWork:
    key = pb.WorkKey(membership=1, round=4, part=part)
    return pb.TrainWork(key=key, scale=scale, ticket_id="t-1" if scale < 0 else "", forget_request=request)


def test_other_data_is_trained_on_and_never_unlearned(state: StateDirectory) -> None:
    other = samples(state, [6, 7])
    assert other.assigned(work(pb.PART_MAIN, 1.0)).tolist() == [0, 1]
    with pytest.raises(CannotDo, match="6 of the 6 samples") as error:
        other.assigned(work(pb.PART_MAIN, -2.0))
    assert "patient" not in str(error.value)
    assert str(state.path) not in str(error.value)


def test_a_sample_of_the_request_that_is_not_in_the_data_is_noticed(state: StateDirectory) -> None:
    exclude(state, [0, 1, 2])
    key = state.request_key(IDS[:3])
    assert samples(state, range(6)).assigned(work(pb.PART_FORGET, -2.0, key)).tolist() == [0, 1, 2]
    with pytest.raises(CannotDo, match="1 of the 6 samples"):
        samples(state, range(1, 6)).assigned(work(pb.PART_FORGET, -2.0, key))
    with pytest.raises(CannotDo, match="does not know which samples"):
        samples(state, range(6)).assigned(work(pb.PART_FORGET, -2.0, "another"))


def test_samples_of_a_request_that_was_taken_over_are_unlearned_with_the_whole_client(state: StateDirectory) -> None:
    exclude(state, [1, 2])
    exclude(state, [7])
    keys = [e.request_key for e in state.exclusions()]
    known = KnownSamples(IDS[:6] + IDS[7:], state, NO_SERVER)
    work = pb.TrainWork(key=pb.WorkKey(part=pb.PART_MAIN, membership=1), scale=-1.0, ticket_id="t-9")
    assert list(known.assigned(work)) == [0, 3, 4, 5]
    # Sample 7 was never trained on, so that there is nothing to unlearn.
    work.taken_requests.extend(keys)
    assert list(known.assigned(work)) == [0, 1, 2, 3, 4, 5]


def test_after_the_loss_of_the_directory_all_samples_count_as_trained_on(state: StateDirectory) -> None:
    """A person says that it is the data of training. Samples of earlier requests are named again and are part of it."""
    state.prepare("r1", IDS[:2])
    state.filed("r1", "t1")
    known = KnownSamples(IDS, state, NO_SERVER)
    assert known.taken(["r1"], 1).tolist() == [0, 1]
    known.restore_record((1, 3), 1)
    assert known.taken(["r1"], 1).tolist() == [0, 1]
    assert known.recorded(1)
