"""The open round, its assignments, and the records that stay of committed rounds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal

from puf_server.core.state.tickets import Flip

__all__ = [
    "Assignment",
    "Combine",
    "HistoryRecord",
    "Part",
    "ReceivedUpdate",
    "Round",
    "RoundKind",
    "RoundPhase",
    "RoundRecord",
]


class RoundKind(StrEnum):
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """One expected update of a round."""

    client: str
    membership: int
    part: Part
    # Announced samples, frozen when the round opened.
    samples: int
    scale: float = 1.0
    flip: Flip = Flip.CLIENT
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
    kind: RoundKind
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
    # Samples of all contributions together; 0 in records from before they were counted.
    samples: int = 0
    # Medians over the ordinary updates; None where there was none, or in a round from before they were kept.
    norm: float | None = None
    buffer_norm: float | None = None


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
