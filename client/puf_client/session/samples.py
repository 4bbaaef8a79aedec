"""The samples of a client in a session: which ones an assignment uses, and whether they are those that were trained on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import get_args

import numpy as np
from numpy.typing import NDArray

from puf_client.session.assignment import PARTS, Part, routine_of, unlearns
from puf_client.session.reconcile import settle
from puf_client.session.update import LocalUpdate
from puf_client.state.directory import StateDirectory
from puf_client.state.usage import SampleUsage, digest_of
from puf_client.transport.base import Transport
from puf_common.errors import Mismatch, UsageError
from puf_common.v1 import federation_pb2 as pb

ALL_PARTS: tuple[Part, ...] = get_args(Part)
# For the part "forget", these routines take all samples of the client, and treat the retained samples in another way.
WITH_RETAINED_SAMPLES = frozenset({"guide", "aux_head"})

_SHOWN = 3


class KnownSamples:
    """The client's samples by id, with the exclusions and the sample usage of a state directory."""

    def __init__(self, ids: Sequence[str], state: StateDirectory, transport: Transport) -> None:
        self.ids = ids
        self.state = state
        self._transport = transport
        self._usage = SampleUsage(state)

    def count(self) -> int:
        """Returns the number of trainable samples now: another process may file requests at any time."""
        settle(self.state, self._transport)
        return len(self.trainable())

    def trainable(self) -> NDArray[np.intp]:
        """Returns the positions of the samples that no request excludes."""
        return np.flatnonzero(~self.state.excluded(self.ids))

    def assigned(self, work: pb.TrainWork) -> NDArray[np.intp]:
        """Returns the positions of an assignment's samples: all trainable ones, or those that a request names.

        Raises `Mismatch` if the assignment would unlearn other data than was trained on.
        """
        settle(self.state, self._transport)
        named = self.named(work)
        if unlearns(work):
            self.require_trained(work.key.membership, named, grown=True)
        if named is None:
            return self.trainable()
        return np.union1d(named, self.trainable()) if routine_of(work) in WITH_RETAINED_SAMPLES else named

    def named(self, work: pb.TrainWork) -> NDArray[np.intp] | None:
        """Returns the positions of the samples that the request of an assignment names; None for other parts."""
        if PARTS[work.key.part] != "forget":
            return None
        return self.state.forget_indices(self.ids, work.forget_request)

    def note(self, work: pb.TrainWork, indices: NDArray[np.intp]) -> None:
        """Records the samples of an update, before it is sent."""
        key = work.key
        unlearning = unlearns(work)
        self._usage.note(self.ids, indices, number=key.round, unlearning=unlearning, membership=key.membership)

    def hashes(self, indices: Sequence[int] | NDArray[np.intp]) -> frozenset[str]:
        return frozenset(self.state.salted(self.ids[i]) for i in indices)

    def recorded(self, membership: int) -> bool:
        """Whether the state directory has a record of samples that were trained on in a membership."""
        return bool(self._usage.trained(membership))

    def restore_record(self, rounds: tuple[int, int], membership: int, named: Sequence[int] = ()) -> None:
        """Records all trainable samples, and the named ones, as trained on in these rounds: a person says so."""
        indices = np.union1d(self.trainable(), np.asarray(named, dtype=np.intp))
        self._usage.restore(self.ids, indices, rounds, membership)

    def require_trained(
        self, membership: int, named: Sequence[int] | NDArray[np.intp] | None = None, *, grown: bool = False
    ) -> None:
        """Raises `Mismatch` if the data is not what was trained on in this membership.

        `named` are the samples of a request for samples; None: the whole client is to be forgotten. With `grown`, the data
        may have further samples: the client announced them, and the request does not name them.
        """
        trained = self._usage.trained(membership)
        if not trained:
            raise Mismatch(
                f"{self.state.path} has no record of the samples that this client trained on: restore that directory "
                "(--state), or confirm with `puf-client --unlearn --same-data` that the data is the same as in training"
            )
        chosen = () if named is None else named
        excluded = frozenset[str]().union(*(e.hashes for e in self.state.exclusions() if e.effective))
        expected = trained - (excluded - self.hashes(chosen))
        present = dict(zip((self.state.salted(i) for i in self.ids), self.ids, strict=True))
        missing = len(expected - present.keys())
        unknown = [sample for salted, sample in present.items() if salted not in trained and salted not in excluded]
        if missing or (unknown and not (grown and named is not None)):
            raise Mismatch(_difference(len(expected), missing, unknown, str(self.state.path)), missing=missing)
        never = [self.ids[i] for i in chosen if self.state.salted(self.ids[i]) not in trained]
        if never:
            raise Mismatch(f"never trained on, so there is nothing to forget: {_few(never)}")


def _difference(expected: int, missing: int, unknown: Sequence[str], record: str) -> str:
    found = []
    if missing:
        found.append(f"{missing} of the {expected} samples that this client trained on are not in the data")
    if unknown:
        found.append(f"{len(unknown)} samples of the data were never trained on ({_few(unknown)})")
    if missing == expected:
        advice = "This is other data than in training, for example the shard of another client"
    elif missing:
        advice = "A sample that is not there cannot be unlearned"
    else:
        advice = "Samples that the model never saw must not be unlearned"
    return (
        f"the data differs from the record in {record}: {' and '.join(found)}. {advice}. Use the data of training: check "
        "--data, --data-option, --shard, --data-seed, --name and --state"
    )


def _few(ids: Sequence[str]) -> str:
    return ", ".join(ids[:_SHOWN]) + (f" and {len(ids) - _SHOWN} more" if len(ids) > _SHOWN else "")


@dataclass(frozen=True)
class LoopSupport:
    """What a training loop can do. A session declines everything else before the loop sees it."""

    # Returns the number of training samples. It is called before every assignment.
    count: Callable[[], int]
    parts: frozenset[str] = frozenset({"main"})
    routines: frozenset[str] = frozenset({"train"})
    # None: the loop handed no ids to the session.
    samples: KnownSamples | None = None

    def __post_init__(self) -> None:
        unknown = sorted(self.parts - set(ALL_PARTS))
        if unknown:
            raise UsageError(f"there is no part {unknown[0]!r}; known are {', '.join(ALL_PARTS)}")
        if self.samples is None and self.parts - {"main"}:
            raise UsageError("only a session that knows the ids of the samples can train on a part of them: set data")

    def note(self, work: pb.TrainWork, update: LocalUpdate, header: pb.UpdateHeader) -> None:
        """Records the samples of an update before it is sent. Its header states those that it unlearns."""
        if self.samples is None or update.indices is None:
            header.unlearned_samples = update.samples if unlearns(work) else 0
            return
        self.samples.note(work, update.indices)
        if unlearns(work):
            named = self.samples.named(work)
            unlearned = self.samples.hashes(update.indices if named is None else named)
            header.unlearned_samples = len(unlearned)
            header.unlearned_digest = bytes.fromhex(digest_of(unlearned))

    def refusal(self, work: pb.TrainWork) -> str | None:
        """Why the loop can never do this work; None if it can."""
        part, routine = PARTS[work.key.part], routine_of(work)
        if part not in self.parts:
            return (
                f"its training loop uses all samples, but the request is for some of them (part {part}): ask for the whole "
                "client to be forgotten, or end the loop and run `puf-client --unlearn` with --data"
            )
        if routine not in self.routines:
            return (
                f"its training loop has the routine {', '.join(sorted(self.routines))}, not {routine}: end the loop and run "
                "`puf-client --unlearn` with --data, or ask the operator for a method that it can run, such as puf"
            )
        return None
