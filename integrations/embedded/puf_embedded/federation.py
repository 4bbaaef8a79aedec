"""A federation whose transport, training and averaging belong to another framework. The rules are those of PUF's server.

The adapter reports which clients are there, what they sent and what they measured. It asks what comes next: an ordinary
round, an unlearning round with its scales, or a recovery round. Clients join with their first update, because other
frameworks do not announce sample counts.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from puf_common.errors import NotNow
from puf_common.receipts.gap import ClassTable, DoseReport
from puf_common.version import VERSION
from puf_embedded import arithmetic
from puf_embedded.arithmetic import Arrays
from puf_embedded.receipts import content_of
from puf_embedded.records import Records
from puf_embedded.starting import started
from puf_server.core import roster, rounds, scheduler, tickets
from puf_server.core.commits import ModelFile
from puf_server.core.config import FederationConfig, Forgetting, Limits, Plan
from puf_server.core.roster import JoinRequest
from puf_server.core.rounds import UpdateHeader
from puf_server.core.state.measurements import Evaluation, Measurement, Sums
from puf_server.core.state.members import MemberStatus
from puf_server.core.state.presence import Presence
from puf_server.core.state.rounds import Assignment, ReceivedUpdate, Round, RoundKind, RoundPhase
from puf_server.core.state.state import State
from puf_server.core.state.tickets import Flip, RequestForm, Ticket, TicketState
from puf_server.core.unlearning import evaluation

# One answer suffices, as in the frameworks. No operator approves what the server would put on hold.
_PLAN = Plan(rounds=0, min_clients=1, quorum=1e-6, evaluate_every=0, keep_models=0, absent_seconds=10.0)
_LIMITS = Limits(max_share=1.0, forget_share=1.0)
# Waiting for a target's measurement ends when it was asked, not after a time.
_PATIENT, _IMPATIENT = 1e12, 0.0


@dataclass(frozen=True)
class Measure:
    """A measurement that a target is asked for: of the model in use, for one ticket."""

    ticket: str
    client: str
    version: int
    unseen: ClassTable | None


@dataclass(frozen=True)
class Update:
    """What a client sent in a round: its weight, its bytes, and how it was scaled."""

    samples: int
    nbytes: int
    scale: float = 1.0
    dose: DoseReport | None = None


class EmbeddedFederation:
    """The state of one federation, and the changes to it. Every change is on disk when the call returns."""

    def __init__(
        self,
        directory: Path,
        *,
        title: str,
        software: str,
        policy: Forgetting | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.records = Records(directory)
        identifier, self.state = self.records.load()
        self._software, self._clock = f"{VERSION} ({software})", clock
        self._here: frozenset[str] = frozenset()
        self._asked: set[tuple[str, int]] = set()
        # Measurements of the models before, until their tickets are applied.
        self._early: dict[tuple[str, int], Measurement] = {}
        self.config = FederationConfig(
            id=identifier, title=title, model=title, plan=_PLAN, forgetting=policy or Forgetting(), limits=_LIMITS
        )

    # The model and the clients.

    def install(self, arrays: Arrays) -> None:
        """Makes these arrays the federation's model, unless they are. A job or round that was under way is given up.

        Raises UsageError if the model contains a client whose receipt says that it was forgotten.
        """
        file = ModelFile(digest=arithmetic.digest(arrays), nbytes=arithmetic.nbytes(arrays))
        self._save(started(self.state, self.config, file, self._clock()))

    def present(self, clients: Iterable[str]) -> None:
        """States which clients are there now."""
        self._here = frozenset(clients)

    @property
    def kept_out(self) -> frozenset[str]:
        """Clients that take part in no ordinary round: forgotten ones, and those whose request waits."""
        gone = {m.name for m in self.state.members.values() if m.status is not MemberStatus.ACTIVE}
        return frozenset(gone | self.state.kept_out())

    def knows(self, client: str) -> bool:
        """Whether a model contains the client."""
        member = self.state.members.get(client)
        return member is not None and member.last_samples > 0

    def holds_out(self, client: str, holdout: int, *, adapts: bool) -> None:
        """Records how many samples a known client holds out, and whether it can choose doses."""
        member = self.state.members[client]
        if member.status is MemberStatus.ACTIVE and (member.holdout, member.adapts) != (holdout, adapts):
            self._join(client, member.samples, holdout, adapts=adapts)

    def file(self, client: str, form: RequestForm) -> Ticket:
        """Files a request. Refuses one after which no client would be left."""
        left = {m.name for m in roster.retained(self.state)} - {client}
        if not left:
            raise NotNow(
                f"{client} is the last client: no other client can recover the model. Discard the model instead"
            )
        state, ticket, _ = tickets.file(
            self.state,
            self._presence(),
            self.config,
            client,
            form,
            ticket_id=f"t-{secrets.token_hex(6)}",
            now=self._clock(),
        )
        self._save(state)
        return ticket

    # Rounds.

    @property
    def round(self) -> Round | None:
        return self.state.round

    def begin(self, clients: Sequence[str]) -> Round:
        """The round of these clients: the open one, or a new one of training or recovery. New clients join."""
        for client in clients:
            if client not in self.state.members:
                self._join(client, 1, 0, adapts=False)
        members = [self.state.members[c] for c in sorted(clients) if c not in self.kept_out]
        step = rounds.ordinary_step(self.state, self.config, members)
        current = self.state.round
        if current is not None:
            self._save(replace(self.state, round=current.with_assignments(step.assignments)))
        else:
            # A run that continues in recovery begins without an open round.
            kind = RoundKind.TRAIN if self.state.recovery is None else RoundKind.RECOVER
            self._save(rounds.open_round(self.state, self.config, kind, step, self._clock()))
        assert self.state.round is not None
        return self.state.round

    def receive(self, assignment: Assignment, update: Update) -> None:
        """Records the update of an assignment. Raises InvalidUpdate if it was not scaled as assigned."""
        current = self.state.round
        assert current is not None
        samples = update.samples
        if current.denominator is None:
            member = self.state.members[assignment.client]
            self._join(member.name, samples, member.holdout, adapts=member.adapts)
        header = UpdateHeader(
            membership=assignment.membership,
            number=current.number,
            attempt=current.attempt,
            part=assignment.part,
            base=current.base,
            samples=assignment.samples if current.denominator is not None else samples,
            applied_scale=update.scale if assignment.flip is Flip.CLIENT else 1.0,
            dose=update.dose,
        )
        received = ReceivedUpdate(
            digest="",
            samples=header.samples,
            nbytes=update.nbytes,
            train_loss=None,
            samples_processed=int(samples * assignment.epochs),
            at=self._clock(),
            dose=update.dose,
            unlearned_samples=samples if assignment.negated else 0,
        )
        self._save(rounds.receive(self.state, assignment.client, header, received)[0])

    def close(self) -> Round | None:
        """The closed round with the updates that came; None if too few came. Clients that are missing count as absent."""
        current = self.state.round
        assert current is not None
        self._advance(_PATIENT, without={a.client for a in current.missing})
        closed = self.state.round
        if closed is not None and closed.phase is RoundPhase.FOLDING:
            return closed
        if closed is not None and closed.attempt == current.attempt:
            self._save(rounds.abandon(self.state, self._clock(), "too few clients answered"))
        return None

    def fail(self, why: str) -> None:
        """Gives the closed round up, because its sum cannot be used. Requests wait for another attempt."""
        self._save(replace(scheduler.fold_failed(self.state, why, self._clock()), halted=""))

    def commit(self, arrays: Arrays, *, bytes_down: int) -> None:
        """Makes the mean of the closed round the next model."""
        file = ModelFile(digest=arithmetic.digest(arrays), nbytes=arithmetic.nbytes(arrays))
        self._save(scheduler.committed(self.state, self.config, file, self._clock(), nbytes_down=bytes_down))
        for (ticket, version), found in list(self._early.items()):
            if self.state.tickets[ticket].applied is not None:
                self._record(Measure(ticket, self.state.tickets[ticket].client, version, None), found)
                del self._early[ticket, version]

    # Measurements.

    def settle(
        self,
        evaluate: Callable[[Evaluation], Mapping[str, Sums]],
        measure: Callable[[Sequence[Measure]], Mapping[str, Measurement]],
    ) -> list[Path]:
        """Has the model in use measured as far as the rules need it. Returns the receipts that were written.

        `evaluate` asks clients for their hold-outs, `measure` asks targets; both leave out clients that do not answer.
        Afterwards `round` is the next unlearning or recovery round, or None.
        """
        while True:
            self._advance(_PATIENT)
            if self.state.evaluation is not None:
                self._evaluate(self.state.evaluation, evaluate)
                continue
            due = self._due()
            if due:
                self._asked |= {(m.ticket, m.version) for m in due}
                found = measure(due)
                for one in due:
                    if one.ticket in found:
                        self._record(one, found[one.ticket])
                continue
            if not self._advance(_IMPATIENT):
                return self._issue()

    def _evaluate(self, asked: Evaluation, evaluate: Callable[[Evaluation], Mapping[str, Sums]]) -> None:
        state = self.state
        for client, sums in sorted(evaluate(asked).items()):
            state = evaluation.answer(state, client, asked.id, asked.version, sums)
        assert state.evaluation is not None
        self._save(state)
        self._advance(_PATIENT, without=set(state.evaluation.missing))

    def _due(self) -> list[Measure]:
        """Measurements of the model in use that no target was asked for yet."""
        state, job = self.state, self.state.job
        version = state.version if job is None or job.working is None else job.working
        score = state.models[version].score if version in state.models else None
        waiting = [
            t.id
            for t in state.tickets.values()
            if (t.state is TicketState.SCHEDULED and job is not None and job.step == 0)
            or (t.applied is not None and version in t.versions and version not in t.applied.measurements)
        ]
        return [
            Measure(i, state.tickets[i].client, version, score.classes if score else None)
            for i in waiting
            if (i, version) not in self._asked
        ]

    def _record(self, asked: Measure, found: Measurement) -> None:
        if self.state.tickets[asked.ticket].applied is None:
            self._early[asked.ticket, asked.version] = found
            return
        state, _ = tickets.measure(self.state, asked.client, asked.ticket, asked.version, found, self._clock())
        self._save(state)

    # Receipts.

    def _issue(self) -> list[Path]:
        """Writes the receipts of completed tickets that have none yet."""
        written: list[Path] = []
        for ticket in self.state.tickets.values():
            path = self.records.directory / "receipts" / f"receipt-{ticket.id}.json"
            if ticket.state is TicketState.COMPLETED and not path.exists():
                content = content_of(
                    self.state, self.config, ticket, head=self.records.head, now=self._clock(), software=self._software
                )
                written += self.records.write_receipt(content)
        return written

    # Changes of state.

    def _join(self, client: str, samples: int, holdout: int, *, adapts: bool) -> None:
        now = self._clock()
        asked = JoinRequest(instance=client, token="", samples=samples, holdout=holdout, adapts=adapts)
        state = roster.join(self.state, self._presence(), self.config, client, asked, now)
        self._save(rounds.samples_changed(state, client, now))

    def _presence(self, without: Iterable[str] = ()) -> Presence:
        now = self._clock()
        return Presence(seen={c: now for c in self._here.difference(without) if self.knows(c)})

    def _advance(self, seconds: float, without: Iterable[str] = ()) -> bool:
        """Whether the rules changed anything."""
        policy = self.config.forgetting.model_copy(update={"measure_seconds": seconds})
        config = self.config.model_copy(update={"forgetting": policy})
        state = scheduler.advance(self.state, self._presence(without), config, self._clock())
        changed = state is not self.state
        if changed:
            self._save(state)
        return changed

    def _save(self, state: State) -> None:
        self.records.save(self.config.id, state)
        self.state = replace(state, notes=())
