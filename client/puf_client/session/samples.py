"""The samples of a client in a session: which ones an assignment uses, and whether they are those that were trained on."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
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
from puf_common.logging import get_logger
from puf_common.v1 import federation_pb2 as pb

log = get_logger("puf_client.session.samples")

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

        Raises `CannotDo` if the assignment would unlearn other data than was trained on.
        """
        settle(self.state, self._transport)
        try:
            named, taken = self.named(work), self.taken(work.taken_requests, work.key.membership)
        except UsageError as error:
            log.error("cannot do the work", reason=error.message)
            raise CannotDo(
                "its state directory does not know which samples the request names: end this worker, and run the command "
                "where the request was filed"
            ) from None
        request = self.state.exclusion(work.forget_request) if named is not None else None
        asked = request.hashes if request is not None else None
        again = self.hashes(taken)
        differs = self.difference(work.key.membership, asked, grown=True, taken=again) if unlearns(work) else None
        if differs is not None:
            log.error("cannot do the work", reason=differs.explained(str(self.state.path)))
            raise CannotDo(f"{differs.counts}: use the data of training")
        if named is None:
            return np.union1d(self.trainable(), taken) if len(taken) else self.trainable()
        return np.union1d(named, self.trainable()) if routine_of(work) in WITH_RETAINED_SAMPLES else named

    def named(self, work: pb.TrainWork) -> NDArray[np.intp] | None:
        """Returns the positions of the samples that the request of an assignment names; None for other parts."""
        if PARTS[work.key.part] != "forget":
            return None
        return self.state.forget_indices(self.ids, work.forget_request)

    def taken(self, request_keys: Collection[str], membership: int) -> NDArray[np.intp]:
        """Returns the positions of samples that these requests name and that were trained on in a membership.

        They are out of training. A request for the whole client took them over and unlearns them, too. Without a record, as
        after the loss of the state directory, all of them count.
        """
        if not request_keys:
            return np.array((), dtype=np.intp)
        trained = self._usage.trained(membership)
        named = {int(i) for key in request_keys for i in self.state.forget_indices(self.ids, key)}
        known = (i for i in named if not trained or self.state.salted(self.ids[i]) in trained)
        return np.array(sorted(known), dtype=np.intp)

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

    def restore_record(self, rounds: tuple[int, int], membership: int) -> None:
        """Records all samples as trained on in these rounds, also forgotten ones: a person says so."""
        self._usage.restore(self.ids, np.arange(len(self.ids)), rounds, membership)

    def require_trained(self, membership: int, named: Sequence[int] | None = None, *, grown: bool = False) -> None:
        """Raises `Mismatch` if the data is not what was trained on in this membership, see `difference`."""
        found = self.difference(membership, None if named is None else self.hashes(named), grown=grown)
        if found is not None:
            raise Mismatch(found.explained(str(self.state.path)), missing=found.missing)

    def difference(
        self,
        membership: int,
        asked: frozenset[str] | None,
        *,
        grown: bool = False,
        taken: frozenset[str] = frozenset(),
    ) -> Difference | None:
        """Returns how the data differs from what was trained on in a membership; None if it does not.

        `asked` are hashes of the samples of a request; None: the whole client is to be forgotten. With `grown`, the data may
        have further samples: the client announced them, and the request does not name them. `taken` are excluded samples
        that a request for the whole client unlearns, too.
        """
        trained = self._usage.trained(membership)
        if not trained:
            return Difference(0, 0, ())
        excluded = frozenset[str]().union(*(e.hashes for e in self.state.exclusions() if e.effective))
        gone = excluded - (asked or frozenset()) - taken
        expected = trained - gone
        present = {self.state.salted(sample): sample for sample in self.ids}
        judged = present.keys() & asked if grown and asked is not None else present.keys()
        strange = judged - trained - gone
        unknown = tuple(sample for salted, sample in present.items() if salted in strange)
        missing = len(expected - present.keys())
        return Difference(len(expected), missing, unknown) if missing or unknown else None


class CannotDo(Exception):
    """The client can never do this work. The text is for the server: it has no ids and no paths."""


@dataclass(frozen=True)
class Difference:
    """How a client's data differs from the `expected` samples that it trained on; all empty: there is no record of them."""

    expected: int
    missing: int
    # Ids of samples that were never trained on.
    unknown: tuple[str, ...]

    @property
    def counts(self) -> str:
        """The difference without ids, which never leave the client."""
        if not self.missing and not self.unknown:
            return "it has no record of the samples that it trained on"
        found = []
        if self.missing:
            found.append(
                f"{self.missing} of the {self.expected} samples that this client trained on are not in the data"
            )
        if self.unknown:
            found.append(f"{len(self.unknown)} samples of the data were never trained on")
        if self.missing == self.expected:
            found.append("this is other data than in training, for example the shard of another client")
        return "; ".join(found)

    def explained(self, record: str) -> str:
        """The difference and what to do, for the client's own screen and log."""
        if not self.missing and not self.unknown:
            return (
                f"{record} has no record of the samples that this client trained on: restore that directory (--state), or "
                "confirm with `puf-client --unlearn --same-data` that the data is the same as in training"
            )
        shown = f" (for example {_few(self.unknown)})" if self.unknown else ""
        return (
            f"the data differs from the record in {record}: {self.counts}{shown}. Only samples that were trained on can be "
            "unlearned, and all of them must be there. Use the data of training: check --data, --data-option, --shard, "
            "--data-seed, --name and --state"
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
                f"its code has the routine {', '.join(sorted(self.routines))}, not {routine}: end a training loop and run "
                "`puf-client --unlearn` with --data, or ask the operator for a method that the loop can run, such as puf"
            )
        return None
