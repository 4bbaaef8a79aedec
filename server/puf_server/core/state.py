"""What the federation knows. Records are values: a change makes a new record, and unchanged ones stay the same object,
so that whoever keeps them can see by identity what has to be written.

`seen`, `activity` and `nbytes_down` are volatile: they die with the process, everything else survives it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Literal

from puf_common.receipts.evidence import Attack

__all__ = [
    "Assignment",
    "AuditNote",
    "Combine",
    "Evaluation",
    "Evidence",
    "HistoryRecord",
    "Kind",
    "Member",
    "MemberStatus",
    "ModelStatus",
    "ModelVersion",
    "Part",
    "ReceivedUpdate",
    "Recovery",
    "Round",
    "RoundPhase",
    "RoundRecord",
    "State",
    "Sums",
    "Ticket",
    "TicketEvent",
    "TicketState",
    "UnlearningJob",
]


class MemberStatus(StrEnum):
    ACTIVE = "active"
    FORGOTTEN = "forgotten"
    # Forgotten once, allowed by the operator to join again.
    READMITTED = "readmitted"


class Kind(StrEnum):
    TRAIN = "train"
    UNLEARN = "unlearn"
    RECOVER = "recover"
    # Nobody is left to retain: the model goes back to w_0.
    RESET = "reset"
    # The operator takes an unlearning back: the model from before it is installed again.
    ROLLBACK = "rollback"


class RoundPhase(StrEnum):
    COLLECTING = "collecting"
    FOLDING = "folding"


class Part(StrEnum):
    MAIN = "main"
    RETAIN = "retain"
    FORGET = "forget"


class TicketState(StrEnum):
    PENDING = "pending"
    SCHEDULED = "scheduled"
    APPLIED = "applied"
    RECOVERING = "recovering"
    COMPLETED = "completed"
    FAILED = "failed"
    WITHDRAWN = "withdrawn"


class ModelStatus(StrEnum):
    READY = "ready"
    # Unlearned, recovery under way.
    UNLEARNED = "unlearned"
    # Knew somebody who was forgotten; kept only until the ticket completes.
    WITHDRAWN = "withdrawn"
    # A method's second model; only for clients whose work names it, gone when the tickets are applied.
    AUXILIARY = "auxiliary"
    DELETED = "deleted"


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One identity on the roster. `samples` is the announced count, which weighs its updates."""

    name: str
    membership: int
    status: MemberStatus
    samples: int
    holdout: int
    # Counts the worker sessions of this name; part of the session, so that an older one is known as such.
    generation: int
    session: str
    # The process that holds the session.
    instance: str
    device: str
    joined_at: float
    # Rounds in which an update of this membership was folded first and last; 0 for none.
    first_round: int = 0
    last_round: int = 0
    # Samples of the update that was folded last: its weight in that round's mean.
    last_samples: int = 0
    # Unlabeled samples that it can distill a model on; for methods that need data beside the clients' own.
    unlabeled: int = 0
    # Why it gets no training work until the operator allows it; empty when it does.
    on_hold: str = ""
    # Announces more than its share of all samples, and the operator has not allowed it.
    outweighs: bool = False
    approved: bool = False

    @property
    def trains(self) -> bool:
        return self.status is MemberStatus.ACTIVE and self.samples > 0 and not self.on_hold and not self.outweighs


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """One expected update of a round."""

    client: str
    membership: int
    part: Part
    # Announced samples, frozen when the round opened.
    samples: int
    scale: float = 1.0
    flip: str = "client"
    epochs: float = 1.0
    # The ticket this assignment serves; empty for retained clients.
    ticket: str = ""
    # Whether the update enters negated.
    negated: bool = False
    # What the client runs, with numbers of its own; ordinary descent unless a method asks for more.
    routine: str = "train"
    options: Mapping[str, float] = field(default_factory=dict)
    # None: the round's.
    lr: float | None = None
    # A second model that the client needs.
    aux: int | None = None
    # Tensors that come back, by name; empty: all. "@head" is the model's last layer.
    outputs: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        # Joined, not formatted: an enum's own formatting takes longer than all the rest, and this is asked very often.
        return self.client + "/" + self.part


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceivedUpdate:
    """An update that is verified and on disk."""

    digest: str
    samples: int
    # On disk.
    nbytes: int
    # None where the client could not tell.
    train_loss: float | None
    samples_processed: int
    at: float
    # As it travelled, where that is not as it lies on disk; 0 from servers that knew no difference.
    wire_nbytes: int = 0
    # Of the parameters before scaling, and of the floating buffers.
    norm: float = 0.0
    buffer_norm: float = 0.0
    # How its digest is computed.
    digest_kind: Literal["sha256", "blake3"] = "sha256"


@dataclass(frozen=True, slots=True, kw_only=True)
class Combine:
    """What the shell makes of a closed round. `fold` is the one rule; others are their method's own equations."""

    rule: str = "fold"
    options: Mapping[str, float] = field(default_factory=dict)
    # Numbers per client, such as lengths that were kept.
    values: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    # Further models that enter, by the name the rule knows them under.
    others: Mapping[str, int] = field(default_factory=dict)
    # Kept updates, by their key, that enter as if they had come just now.
    history: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """The round under way. `denominator` is the frozen n of an unlearning round; None: n is what was received."""

    number: int
    attempt: int
    kind: Kind
    base: int
    lr: float
    assignments: tuple[Assignment, ...]
    opened_at: float
    deadline_at: float | None = None
    denominator: int | None = None
    phase: RoundPhase = RoundPhase.COLLECTING
    received: Mapping[str, ReceivedUpdate] = field(default_factory=dict)
    # Slots that will not be filled, with the client's reason.
    declined: Mapping[str, str] = field(default_factory=dict)
    # The newest of these answers; where nobody else can fill the assignments, their clients are asked again after a while.
    declined_at: float = 0.0
    repeats: int = 0
    # Grows when something is taken out, so that a sum computed before is known to be outdated.
    revision: int = 0
    # Rounds of an job: the method whose step this is, how its result comes about, and what becomes of it.
    method: str = ""
    combine: Combine = field(default_factory=Combine)
    last: bool = True
    into: str = ""
    # Known once this is committed.
    method_state: Mapping[str, float | int | str] = field(default_factory=dict)
    # The round that random choices derive from where it is not this one; 0: this one.
    stream: int = 0
    # Whether the federation's wish for unlearning without augmentation holds here.
    plain: bool = True
    # Tickets that are served by it, whether or not their clients take part.
    targets: tuple[str, ...] = ()

    @property
    def missing(self) -> tuple[Assignment, ...]:
        return tuple(s for s in self.assignments if s.key not in self.received)

    @property
    def tickets(self) -> tuple[str, ...]:
        return self.targets or tuple(dict.fromkeys(s.ticket for s in self.assignments if s.ticket))


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundRecord:
    """What is remembered of a committed round: no updates, no digests of them, only counts."""

    number: int
    attempt: int
    kind: Kind
    base: int
    version: int
    expected: int
    contributions: int
    opened_at: float
    committed_at: float
    nbytes_up: int
    nbytes_down: int
    samples_processed: int
    train_loss: float | None
    tickets: tuple[str, ...] = ()
    # Samples of all contributions together; 0 in records from before they were counted.
    samples: int = 0
    # Medians over the ordinary updates; None where there was none, or in a round from before they were kept.
    norm: float | None = None
    buffer_norm: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sums:
    """Sums over samples of one client, or of several together."""

    samples: int
    loss_sum: float
    score_sum: float
    # Counts by the model's confidence in the truth; empty where nobody told.
    confidences: tuple[int, ...] = ()

    def __add__(self, other: Sums) -> Sums:
        return Sums(
            samples=self.samples + other.samples,
            loss_sum=self.loss_sum + other.loss_sum,
            score_sum=self.score_sum + other.score_sum,
            confidences=tuple(a + b for a, b in zip(self.confidences, other.confidences, strict=True))
            if self.confidences and other.confidences
            else self.confidences or other.confidences,
        )

    @property
    def score(self) -> float:
        return self.score_sum / self.samples

    @property
    def loss(self) -> float:
        return self.loss_sum / self.samples


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """Clients measuring one model version on their hold-outs."""

    id: int
    version: int
    asked: tuple[str, ...]
    opened_at: float
    deadline_at: float | None = None
    answers: Mapping[str, Sums] = field(default_factory=dict)
    # Whether their training samples are measured, too: what membership attacks on behalf of a leaver are calibrated with.
    training_side: bool = False
    training: Mapping[str, Sums] = field(default_factory=dict)

    @property
    def missing(self) -> tuple[str, ...]:
        return tuple(name for name in self.asked if name not in self.answers)


@dataclass(frozen=True, slots=True, kw_only=True)
class TicketEvent:
    """One entry of a ticket's history."""

    state: TicketState
    at: float
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What the owner of a ticket found out about one model beside the sums on its forget data; None where it could not."""

    holdout: Sums | None = None
    yeom: Attack | None = None
    song: Attack | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ticket:
    """A request to be forgotten."""

    id: str
    client: str
    membership: int
    request_key: str
    scope: str
    mode: str
    flip: str
    kappa: float | None
    eta_u: float | None
    epochs: int
    forget_samples: int
    retain_samples: int
    reference: str
    filed_at: float
    received_at: float
    deadline_at: float
    state: TicketState = TicketState.PENDING
    history: tuple[TicketEvent, ...] = ()
    method: str = ""
    attempts: int = 0
    # After a missed attempt the next one waits until then.
    not_before: float = 0.0
    applied_round: int = 0
    applied_at: float = 0.0
    completed_at: float = 0.0
    scale: float = 0.0
    version_before: int | None = None
    version_unlearned: int | None = None
    version_recovered: int | None = None
    recovery_rounds: int = 0
    recovered: bool | None = None
    score_before: Sums | None = None
    score_unlearned: Sums | None = None
    score_recovered: Sums | None = None
    score_clients: int = 0
    # What the owner measured on the data being forgotten, by model version.
    measurements: Mapping[int, Sums] = field(default_factory=dict)
    evidence: Mapping[int, Evidence] = field(default_factory=dict)
    deleted_versions: tuple[int, ...] = ()
    # "client" or "operator".
    filed_by: str = "client"
    # The request for the whole client that took this one over; empty: its owner withdrew it, or nobody did.
    taken_over: str = ""
    # Why the fallback serves this ticket instead of the federation's method; empty: it does not.
    fallback: str = ""
    # Records about the client that were kept for the method and deleted when it was forgotten, and their bytes.
    deleted_records: int = 0
    deleted_bytes: int = 0
    # Was completed once, in a later state than this one: until it is applied again, every newer model knows its client.
    reopened: bool = False
    # Announced samples that it takes out of the federation, for the budget of forgetting.
    weight: int = 0
    # Why it is not served until the operator allows it; empty when it is.
    on_hold: str = ""

    @property
    def open(self) -> bool:
        return self.state not in (TicketState.COMPLETED, TicketState.FAILED, TicketState.WITHDRAWN)

    @property
    def waiting(self) -> bool:
        return self.state in (TicketState.PENDING, TicketState.SCHEDULED)

    @property
    def recovering(self) -> bool:
        return self.state in (TicketState.APPLIED, TicketState.RECOVERING)

    @property
    def keeps_out(self) -> bool:
        """Filed and not applied: its client does no ordinary training. A failed request for everything keeps it out too."""
        return self.waiting or (self.state is TicketState.FAILED and self.scope == "client")


@dataclass(frozen=True, slots=True, kw_only=True)
class UnlearningJob:
    """Tickets on their way to being applied: first the measurement before, then the method's steps, one round each.

    The federation's model stays what it is until the last step commits; on the way the job has a model of its own.
    """

    tickets: tuple[str, ...]
    mode: str
    evaluators: tuple[str, ...]
    before: Mapping[str, Sums] = field(default_factory=dict)
    # Whether the measurement before is done, or cannot be.
    measured: bool = False
    method: str = "puf"
    # Steps committed, and what the method wants to know about them.
    step: int = 0
    method_state: Mapping[str, float | int | str] = field(default_factory=dict)
    # The version that the last step made; None before the first.
    working: int | None = None
    # Auxiliary versions by name.
    aux: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """Ordinary rounds after unlearning, until the stop rule holds; serves every applied ticket together.

    A ticket applied meanwhile joins with `rounds` counted anew and the earliest `before` kept.
    """

    evaluators: tuple[str, ...]
    before: Mapping[str, Sums]
    started_at: float
    rounds: int = 0
    # The newest version that was measured, and the answers; None before the first measurement.
    evaluated: int | None = None
    latest: Mapping[str, Sums] = field(default_factory=dict)
    # The model went back to w_0: there is nothing to recover.
    reset: bool = False
    # The method's own bounds on the rounds; None: the federation's.
    at_least: int = 0
    at_most: int | None = None
    # The model collapsed: why it is neither ready nor exported until the operator releases it or rolls back.
    on_hold: str = ""
    released: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelVersion:
    version: int
    round: int
    digest: str
    nbytes: int
    status: ModelStatus
    created_at: float
    score: Sums | None = None
    score_clients: int = 0
    # The retained clients' training samples, all together.
    training: Sums | None = None
    # Of the same bytes as the digest, for quick checks of a transfer; empty from servers that knew none.
    blake3: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryRecord:
    """One thing that is kept about one client because the federation's method needs it. `kind` is a word of Memory."""

    key: str
    kind: str
    client: str
    membership: int
    round: int
    samples: int
    # A sum of updates: the first round in it; `round` is the last. 0: not a sum, or not known.
    since: int = 0
    # Lengths of an update, per parameter in manifest order.
    norms: tuple[float, ...] = ()
    # An update or a sum of updates on disk; empty: numbers alone.
    digest: str = ""
    nbytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditNote:
    """A line for the audit log, written in the transaction that persists the change it tells of."""

    event: str
    at: float
    facts: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    # Persistent.
    version: int = 0
    # The last committed round, t.
    number: int = 0
    # Attempts opened for the round after `number`.
    attempt: int = 0
    # Training rounds committed and planned; unlearning and recovery rounds come on top.
    trained: int = 0
    planned: int = 0
    paused: bool = False
    # Why the federation stopped by itself; empty when it did not.
    halted: str = ""
    evaluations: int = 0
    members: Mapping[str, Member] = field(default_factory=dict)
    round: Round | None = None
    evaluation: Evaluation | None = None
    job: UnlearningJob | None = None
    recovery: Recovery | None = None
    tickets: Mapping[str, Ticket] = field(default_factory=dict)
    models: Mapping[int, ModelVersion] = field(default_factory=dict)
    records: Mapping[int, RoundRecord] = field(default_factory=dict)
    # What the federation's method has to remember, by key; empty for most methods.
    history: Mapping[str, HistoryRecord] = field(default_factory=dict)
    # Which part of a split data set a name was given; kept when it is forgotten.
    leases: Mapping[str, int] = field(default_factory=dict)
    # Volatile.
    stopping: bool = False
    seen: Mapping[str, float] = field(default_factory=dict)
    activity: Mapping[str, str] = field(default_factory=dict)
    # Tensor bytes sent since the last commit: for the round under way and the measurements before it.
    nbytes_down: int = 0
    # Lines not written yet.
    notes: tuple[AuditNote, ...] = ()

    @property
    def newest(self) -> int:
        """The highest version number in use; above `version` while an job is on its way."""
        return max(self.models, default=0)

    def note(self, event: str, now: float, **facts: Any) -> State:
        return replace(self, notes=(*self.notes, AuditNote(event=event, at=now, facts=facts)))

    def with_member(self, member: Member) -> State:
        return replace(self, members={**self.members, member.name: member})

    def with_ticket(self, ticket: Ticket) -> State:
        return replace(self, tickets={**self.tickets, ticket.id: ticket})

    def with_model(self, model: ModelVersion) -> State:
        return replace(self, models={**self.models, model.version: model})

    def alive(self, name: str, now: float, absent_seconds: float) -> bool:
        seen = self.seen.get(name)
        return seen is not None and now - seen <= absent_seconds

    def kept_out(self) -> set[str]:
        """Clients that a ticket keeps out of ordinary training."""
        return {
            t.client
            for t in self.tickets.values()
            if t.keeps_out and (m := self.members.get(t.client)) is not None and m.membership == t.membership
        }
