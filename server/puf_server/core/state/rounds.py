"""The open round, its assignments, and the records of committed rounds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Literal

from puf_common.receipts.gap import ClassTable, DoseReport
from puf_server.core.state.tickets import Flip


class RoundKind(StrEnum):
    TRAIN = "train"
    UNLEARN = "unlearn"
    RECOVER = "recover"
    # No retained client is left: the model goes back to w_0.
    RESET = "reset"
    # The operator takes an unlearning back: the model from before is installed again.
    ROLLBACK = "rollback"


class RoundPhase(StrEnum):
    COLLECTING = "collecting"
    FOLDING = "folding"


class Part(StrEnum):
    MAIN = "main"
    RETAIN = "retain"
    FORGET = "forget"


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """One expected update of a round."""

    client: str
    membership: int
    part: Part
    # The announced samples at the opening of the round.
    samples: int
    scale: float = 1.0
    flip: Flip = Flip.CLIENT
    epochs: float = 1.0
    # The ticket that this assignment serves; empty for retained clients.
    ticket: str = ""
    # Of the samples: those that its ticket took over from earlier requests. They are not announced.
    taken: int = 0
    # Whether the update enters negated.
    negated: bool = False
    # What the client runs, and its options.
    routine: str = "train"
    options: Mapping[str, float] = field(default_factory=dict)
    # None: the round's rate.
    lr: float | None = None
    # A second model that the client needs.
    aux: int | None = None
    # Names of the tensors in the update; empty: all. "@head" is the model's last layer.
    outputs: tuple[str, ...] = ()
    # Routine "dose": the hold-outs of the other clients, measured with the base model.
    unseen: ClassTable | None = None

    @property
    def key(self) -> str:
        # Joined, not formatted: formatting an enum is slow, and this runs very often.
        return self.client + "/" + self.part


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceivedUpdate:
    """An update that is verified and on disk."""

    digest: str
    samples: int
    # On disk.
    nbytes: int
    # None if the client stated no valid loss.
    train_loss: float | None
    samples_processed: int
    at: float
    # As it travelled; 0 in records of older versions.
    wire_nbytes: int = 0
    # Of the parameters before scaling, and of the floating buffers.
    norm: float = 0.0
    buffer_norm: float = 0.0
    digest_kind: Literal["sha256", "blake3"] = "sha256"
    dose: DoseReport | None = None
    # What a target says about the samples that the update unlearns; 0 and empty if it says nothing.
    unlearned_samples: int = 0
    unlearned_digest: str = ""


class CombineRule(StrEnum):
    """Rules of the methods that come with the server. A method of the user's names its own rules."""

    # The weighted sum of all updates.
    FOLD = "fold"
    # The base model as it is.
    KEEP = "keep"
    NEGATE = "negate"
    MIX = "mix"
    CALIBRATE = "calibrate"
    FRESH = "fresh"
    BLEND = "blend"
    ERASE = "erase"
    INSTALL = "install"
    # The base model plus a factor for each update and for each difference to another model, by inner products.
    LINEAR = "linear"
    # The base model with random noise from a secret stream.
    NOISE = "noise"


@dataclass(frozen=True, slots=True, kw_only=True)
class Combine:
    """How the updates of a closed round become a model."""

    rule: str = CombineRule.FOLD
    options: Mapping[str, float] = field(default_factory=dict)
    # Numbers per client, such as stored lengths.
    values: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    # Further models, by the name that the rule uses.
    others: Mapping[str, int] = field(default_factory=dict)
    # Keys of stored updates that enter like received ones.
    history: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What one round does: who works, from which model, and what becomes of the result. Without assignments the server
    works alone."""

    base: int
    assignments: tuple[Assignment, ...] = ()
    combine: Combine = field(default_factory=Combine)
    # The frozen n. None: n is what was received, and the server's learning rate applies.
    denominator: int | None = None
    # None: the recipe's, after the rounds that count for its decay.
    lr: float | None = None
    # Random choices derive from this number. None: from the round's own number, and from the method after a request.
    stream: int | None = None
    # Whether a round of a method counts as a round of training for the decay of the learning rate.
    decays: bool = False
    # Whether the federation's setting for unlearning without augmentation applies.
    plain: bool = True
    # Whether the result is the federation's model; in a job, whether the commit applies the tickets.
    last: bool = False
    # The name of the auxiliary model that the result becomes. None: it is the model itself.
    into: str | None = None
    # What the method needs to know in later steps.
    method_state: Mapping[str, float | int | str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """The open round."""

    number: int
    attempt: int
    kind: RoundKind
    step: Step
    # The clients' learning rate where their assignment names none.
    lr: float
    opened_at: float
    deadline_at: float | None = None
    phase: RoundPhase = RoundPhase.COLLECTING
    received: Mapping[str, ReceivedUpdate] = field(default_factory=dict)
    # Assignments that will not be filled, with the client's reason.
    declined: Mapping[str, str] = field(default_factory=dict)
    # When the newest of these reasons arrived. Without a replacement, the clients are asked again after a while.
    declined_at: float | None = None
    # Declined assignments that their clients will never be able to fill.
    declined_for_good: tuple[str, ...] = ()
    repeats: int = 0
    # Grows when an update is taken out: a sum that was computed before is outdated.
    revision: int = 0
    # When it closed; None while it collects, and in records of older versions.
    closed_at: float | None = None
    # In a job: the method whose step this is, and the tickets that it serves.
    method: str | None = None
    targets: tuple[str, ...] = ()

    @property
    def base(self) -> int:
        return self.step.base

    @property
    def assignments(self) -> tuple[Assignment, ...]:
        return self.step.assignments

    @property
    def denominator(self) -> int | None:
        return self.step.denominator

    @property
    def missing(self) -> tuple[Assignment, ...]:
        return tuple(a for a in self.assignments if a.key not in self.received)

    def scale_of(self, assignment: Assignment) -> float:
        """The factor on an update. In a dose the target chose a part of it."""
        update = self.received.get(assignment.key)
        return assignment.scale * update.dose.kappa if update is not None and update.dose else assignment.scale

    @property
    def tickets(self) -> tuple[str, ...]:
        return self.targets or tuple(dict.fromkeys(a.ticket for a in self.assignments if a.ticket))

    def with_assignments(self, assignments: tuple[Assignment, ...]) -> Round:
        return replace(self, step=replace(self.step, assignments=assignments))


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundRecord:
    """What stays of a committed round: counts, no updates and no digests."""

    number: int
    attempt: int
    kind: RoundKind
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
    # Samples of all updates; 0 in records of older versions.
    samples: int = 0
    # Median norms of the ordinary updates; None without any, and in records of older versions.
    norm: float | None = None
    buffer_norm: float | None = None
    # When the sum of its updates began; None in records of older versions.
    closed_at: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryRecord:
    """Stored history about one client, for the federation's method. `kind` is one of `StoredHistory.words`."""

    key: str
    kind: str
    client: str
    membership: int
    round: int
    samples: int
    # Of a sum of updates: its first round; `round` is the last. 0: not a sum, or not known.
    since: int = 0
    # The norms of an update, per parameter in manifest order.
    norms: tuple[float, ...] = ()
    # Of the file with an update or a sum; empty: there is no file.
    digest: str = ""
    nbytes: int = 0
