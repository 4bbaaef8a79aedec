"""Requests to be forgotten: one ticket each, from filing to completion."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from puf_common.receipts.gap import Gap
from puf_server.core.state.measurements import Measurement, Sums


class Scope(StrEnum):
    CLIENT = "client"
    SAMPLES = "samples"


class Mode(StrEnum):
    REGULAR = "regular"
    SPECIAL = "special"


class Flip(StrEnum):
    """The side that negates and scales an update."""

    CLIENT = "client"
    SERVER = "server"


class Strength(StrEnum):
    """How the factor on the target's update is chosen."""

    # By the request: kappa or eta_u.
    FIXED = "fixed"
    # By the target, round by round, from the measured effect.
    AUTO = "auto"


class FiledBy(StrEnum):
    CLIENT = "client"
    # On behalf of a client.
    OPERATOR = "operator"


class TicketState(StrEnum):
    PENDING = "pending"
    SCHEDULED = "scheduled"
    APPLIED = "applied"
    RECOVERING = "recovering"
    COMPLETED = "completed"
    FAILED = "failed"
    WITHDRAWN = "withdrawn"


@dataclass(frozen=True, slots=True, kw_only=True)
class TicketEvent:
    """One entry of a ticket's history."""

    state: TicketState
    at: float
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestForm:
    """What a client asks for; None where it leaves the choice to the federation."""

    key: str
    scope: Scope = Scope.CLIENT
    mode: Mode | None = None
    flip: Flip | None = None
    strength: Strength | None = None
    kappa: float | None = None
    eta_u: float | None = None
    epochs: int | None = None
    forget_samples: int = 0
    retain_samples: int = 0
    reference: str = ""
    received_at: float | None = None
    # The failed ticket for the same samples that this request replaces.
    replaces: str = ""
    by: FiledBy = FiledBy.CLIENT


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What was asked for. It does not change after filing."""

    # Chosen by the client: the same key is the same request.
    key: str
    scope: Scope
    mode: Mode
    flip: Flip
    kappa: float | None
    eta_u: float | None
    epochs: int
    # None for a whole client.
    forget_samples: int | None = None
    retain_samples: int | None = None
    reference: str = ""
    filed_at: float
    received_at: float
    filed_by: FiledBy = FiledBy.CLIENT
    strength: Strength = Strength.FIXED
    # Announced samples that it takes out of the federation, for the budget; 0 where no model contains the client.
    weight: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Dose:
    """One round of adaptive strength: what the target chose, and what it measured of the model before the round."""

    round: int
    kappa: float
    gap: Gap
    # Whether it only kept the data away.
    hold: bool = False
    # The hold-out score of the model before the round.
    score: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedStrength:
    """Serves a request for adaptive strength that cannot be measured."""

    kappa: float
    epochs: int
    because: str


class RecoveryEnd(StrEnum):
    """Why recovery ended."""

    # The score equals the score before within its standard error.
    EQUAL = "equal"
    # Further rounds did not improve the score.
    PLATEAU = "plateau"
    # The largest number of rounds was reached.
    LIMIT = "limit"
    # The policy's days were over.
    TIME = "time"
    # No retained client was left.
    NO_CLIENT = "no client"
    # No client could evaluate; a fixed number of rounds ran.
    NOT_MEASURED = "not measured"
    # The model went back to w_0.
    RESET = "reset"


@dataclass(frozen=True, slots=True, kw_only=True)
class Watch:
    """The models of recovery that the owner of a ticket measures, one after the other."""

    # The newest, and since when it may be measured.
    version: int
    since: float
    # Of the models before it, oldest first; None where the owner reported none.
    gaps: tuple[Gap | None, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class UnlearnedSamples:
    """What the target says about the samples that it unlearned. The server cannot check it."""

    samples: int
    # Over salted hashes of their ids; empty if the client does not know ids.
    digest: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """How a ticket was applied, and what was measured since."""

    round: int
    at: float
    method: str
    # The factor on the target's update; None for methods that do not scale it.
    scale: float | None = None
    # None where no model contained the client.
    version_before: int | None = None
    version_unlearned: int | None = None
    # Measured by the retained clients, and how many of them.
    score_before: Sums | None = None
    score_unlearned: Sums | None = None
    score_clients: int = 0
    recovery_rounds: int = 0
    # Measured by the target on the data that was forgotten, by model version.
    measurements: Mapping[int, Measurement] = field(default_factory=dict)
    # History records about the client that were deleted with it, and their bytes.
    deleted_records: int = 0
    deleted_bytes: int = 0
    # Of adaptive strength, oldest first.
    doses: tuple[Dose, ...] = ()
    # What the owner measures in recovery; None if it does not watch.
    watch: Watch | None = None
    # None where the target did not take part, or did not state it.
    unlearned: UnlearnedSamples | None = None
    # `at` on a clock that was moved since; None if it was not. `at` is a date and stays.
    at_moved: float | None = None

    @property
    def measurable_since(self) -> float:
        """Since when the target may measure its models, for durations."""
        return self.at if self.at_moved is None else self.at_moved


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a ticket was completed."""

    completed_at: float
    # None where it could not be measured.
    recovered: bool | None = None
    version_recovered: int | None = None
    score_recovered: Sums | None = None
    deleted_versions: tuple[int, ...] = ()
    # None in tickets of older versions.
    ended: RecoveryEnd | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ticket:
    id: str
    client: str
    membership: int
    request: Request
    # The last day to apply it. A rollback sets a new one.
    deadline_at: float
    state: TicketState = TicketState.PENDING
    history: tuple[TicketEvent, ...] = ()
    attempts: int = 0
    # After a missed attempt the next one waits until then.
    not_before: float | None = None
    # Why it waits for operator approval.
    on_hold: str | None = None
    # Why the fallback serves it instead of the federation's method.
    fallback: str | None = None
    # Set where strength was to adapt and cannot.
    fixed: FixedStrength | None = None
    # The method that followed because the data could still be told from unseen data.
    escalated: str | None = None
    # The request for the whole client that replaced this one.
    taken_over: str | None = None
    # The ticket for the same samples that this one replaced.
    replaces: str = ""
    # For a whole client: its tickets for samples that were never applied, and the number of their samples. These are out of
    # training. They are unlearned with this ticket.
    took_over: tuple[str, ...] = ()
    taken_samples: int = 0
    # It was completed before the state was restored from a backup. Until it is applied again, every newer model
    # contains its client.
    reopened: bool = False
    # It took the place of a reopened request: the same holds until it is applied.
    for_reopened: bool = False
    applied: Applied | None = None
    outcome: Outcome | None = None

    @property
    def whole_client(self) -> bool:
        return self.request.scope is Scope.CLIENT

    @property
    def forget_samples(self) -> int:
        """Single samples to forget; 0 for a whole client."""
        return self.request.forget_samples or 0

    @property
    def adaptive(self) -> bool:
        """Whether adaptive strength serves it."""
        return self.request.strength is Strength.AUTO and self.fixed is None

    @property
    def epochs(self) -> int:
        """Local epochs of the target in an unlearning round (E_u)."""
        return self.fixed.epochs if self.fixed else self.request.epochs

    @property
    def kappa(self) -> float | None:
        """The fixed factor on the target's update; None with eta_u, with adaptive strength and for other methods."""
        return self.fixed.kappa if self.fixed else self.request.kappa

    @property
    def version_recovered(self) -> int | None:
        """The model after recovery. Its owner may measure it before the ticket completes."""
        if self.outcome is not None:
            return self.outcome.version_recovered
        return self.applied.watch.version if self.applied and self.applied.watch else None

    @property
    def versions(self) -> tuple[int, ...]:
        """Its models before, right after unlearning and after recovery, as far as they exist."""
        before = (self.applied.version_before, self.applied.version_unlearned) if self.applied else ()
        after = (self.version_recovered,)
        return tuple(v for v in (*before, *after) if v is not None)

    @property
    def open(self) -> bool:
        return self.state not in (TicketState.COMPLETED, TicketState.FAILED, TicketState.WITHDRAWN)

    @property
    def waiting(self) -> bool:
        return self.state in (TicketState.PENDING, TicketState.SCHEDULED)

    @property
    def unserved(self) -> bool:
        """Whether models contain data that was forgotten before the state was restored from a backup."""
        return (self.reopened or self.for_reopened) and (self.waiting or self.state is TicketState.FAILED)

    @property
    def recovering(self) -> bool:
        return self.state in (TicketState.APPLIED, TicketState.RECOVERING)

    @property
    def excludes_samples(self) -> bool:
        """Whether its samples must stay out of training: unless its client withdrew it."""
        withdrawn = self.state is TicketState.WITHDRAWN and self.taken_over is None
        return not self.whole_client and not withdrawn

    @property
    def keeps_out(self) -> bool:
        """Whether its client gets no ordinary training. A failed request for a whole client keeps it out too."""
        return self.waiting or (self.state is TicketState.FAILED and self.whole_client)

    def within_grace(self, now: float, seconds: float) -> bool:
        """Whether its client may still use it: while it is open, and for this long after completion."""
        return self.open or (self.outcome is not None and now <= self.outcome.completed_at + seconds)
