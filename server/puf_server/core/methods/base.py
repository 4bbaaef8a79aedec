"""What a method of unlearning is: written once, run alike by the service and by the lab.

A method declares what it `requires`, refuses what it cannot serve when it is asked, and plans: given what the federation
knows and how far the job has come, it names the next `Step`. A step is a round like any other (its cohort is on disk
before anybody is asked, updates are kept before they are acknowledged, a restart continues it): these clients run this
routine from this model, what came back is combined by this rule, and the result is the model, a model on the way to it,
or an auxiliary one. A step without assignments is the server's alone. The commit of the last step applies the tickets.

The equations of a method stand in its own file, as a rule over blocks of tensors; the shell only streams them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from puf_common.tensors.manifest import Manifest, TensorSpec
from puf_server.core import roster
from puf_server.core.config import FederationConfig
from puf_server.core.state.jobs import UnlearningJob
from puf_server.core.state.members import Member
from puf_server.core.state.presence import Presence
from puf_server.core.state.rounds import Assignment, Combine, CombineRule, Part, Step
from puf_server.core.state.state import State
from puf_server.core.state.tickets import FiledBy, Flip, Mode, Scope, Ticket

__all__ = [
    "Asked",
    "Memory",
    "Method",
    "Options",
    "Requirements",
    "Rule",
    "Step",
    "Target",
    "TensorBlock",
    "UpdateBlock",
    "View",
    "installed",
    "mean_of_buffers",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirements:
    """A row of the table that compares methods: a method states what differs. Tests compare every value with behaviour."""

    # The server stores something about updates in ordinary rounds.
    history: bool = False
    # The method is the published one only if every retained client takes part.
    full_participation: bool = False
    # A client stores something from round to round.
    stateful_clients: bool = False
    # Works for any task, not for classification only.
    task_agnostic: bool = True
    # Needs data beside the clients' own.
    auxiliary_data: bool = False
    # At most one round of communication before recovery.
    single_round: bool = True
    # Serves several targets at once.
    simultaneous: bool = True
    # Other targets give another model.
    selective: bool = True
    # The target has to be alive.
    target_takes_part: bool = False
    # Retained clients work before recovery. While too few are alive, the request waits.
    retained_take_part: bool = False
    scopes: tuple[Scope, ...] = (Scope.CLIENT, Scope.SAMPLES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """What is kept of ordinary rounds while a method needs it; announced to whoever joins."""

    # Length of every update, per round and client.
    norms: bool = False
    # The updates of the first round that anybody took part in.
    first_updates: bool = False
    # Per client, the sum of its contributions as they entered the model.
    sums: bool = False
    # All model versions.
    checkpoints: bool = False
    # On the client's own disk: its last local model.
    last_local_model: bool = False
    # Whether it still means something after the model was rebuilt from w_0 by another method.
    survives_rewrite: bool = False

    @property
    def words(self) -> tuple[str, ...]:
        names = ("norms", "first_updates", "sums", "checkpoints", "last_local_model")
        return tuple(name.replace("_", "-") for name in names if getattr(self, name))

    @property
    def of_updates(self) -> bool:
        return self.norms or self.first_updates or self.sums


class Options(BaseModel):
    """A method's own parameters: `--forgetting-method-options name=value`."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A request as a method judges it when it is filed; None where the client left the choice open."""

    client: str
    scope: Scope
    mode: Mode | None = None
    kappa: float | None = None
    eta_u: float | None = None
    epochs: int | None = None
    flip: Flip | None = None
    by: FiledBy = FiledBy.CLIENT


@dataclass(frozen=True, slots=True)
class Target:
    ticket: Ticket
    member: Member

    @property
    def forget_samples(self) -> int:
        return self.member.samples if self.ticket.whole_client else self.ticket.forget_samples


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """What a method may look at when it plans."""

    state: State
    presence: Presence
    config: FederationConfig
    now: float
    # None before there is one, when tickets are looked at: `about` names them.
    job: UnlearningJob | None = None
    about: tuple[str, ...] = ()

    @property
    def started(self) -> UnlearningJob:
        assert self.job is not None
        return self.job

    @property
    def targets(self) -> list[Target]:
        tickets = [self.state.tickets[t] for t in (self.job.tickets if self.job else self.about)]
        return [Target(t, self.state.members[t.client]) for t in tickets]

    @property
    def model(self) -> int:
        """The version this job has come to; the federation's own where it has made none yet."""
        made = self.started.working
        return self.state.version if made is None else made

    @property
    def retained(self) -> list[Member]:
        """Who trains without the targets' data: the retained clients, and targets of sample scope with the rest."""
        whole = {t.client for t in self.state.tickets.values() if t.keeps_out and t.whole_client}
        back = [t.member for t in self.targets if not t.ticket.whole_client and t.member.name not in whole]
        return sorted([*roster.retained(self.state), *(m for m in back if m.trains)], key=lambda m: m.name)

    def alive(self, name: str) -> bool:
        return roster.worker_alive(self.presence, name, self.config, self.now)

    def cohort(self, *, at_least: int = 0, drawn_as: int | None = None) -> list[Member]:
        """The plan's share of the retained clients that are alive; drawn by the next round's number or by another."""
        members = self.retained
        return roster.cohort(
            members, self.state, self.presence, self.config, self.now, at_least=at_least, round_number=drawn_as
        )

    @property
    def enough(self) -> bool:
        """Whether as many retained clients are alive as a round without the targets needs to close."""
        members = self.retained
        alive = sum(self.alive(m.name) for m in members)
        return alive >= max(1, ceil(self.config.plan.participation * self.config.plan.quorum * len(members)))

    def ordinary(self, members: Sequence[Member], **changes: Any) -> tuple[Assignment, ...]:
        """Slots of plain descent; a target of sample scope trains on what remains."""
        targets = {t.member.name for t in self.targets}
        epochs = changes.pop("epochs", float(self.config.recipe.epochs))
        return tuple(
            Assignment(
                client=m.name,
                membership=m.membership,
                part=Part.RETAIN if m.name in targets else Part.MAIN,
                samples=m.samples,
                epochs=epochs,
                **changes,
            )
            for m in sorted(members, key=lambda m: m.name)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateBlock:
    """What one contribution has for one block; `u` is None where its manifest leaves the tensor out."""

    client: str
    samples: int
    u: NDArray[Any] | None
    # Length of the whole contribution, per parameter in manifest order; only where the rule `measures`.
    norms: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorBlock:
    """A run of values of one tensor: in the base model, in others by name, and in what came back, by client."""

    tensor: TensorSpec
    # Counts the parameters of the manifest; -1 for buffers.
    parameter: int
    w: NDArray[Any]
    others: Mapping[str, NDArray[Any]]
    updates: Sequence[UpdateBlock]


# A block of the new model, in any floating type: whoever calls casts once and refuses what is not finite.
Rule = Callable[[TensorBlock], NDArray[Any]]


class Method:
    """Base of all methods. A method is its options and pure functions; everything it must remember is in the state."""

    name: ClassVar[str]
    # One line for the table and for `--help`.
    summary: ClassVar[str]
    requires: ClassVar[Requirements]
    memory: ClassVar[Memory] = Memory()
    options_type: ClassVar[type[Options]] = Options
    # The model is rebuilt from w_0 (or from a checkpoint), so nobody's contribution to the old one is in it.
    rewrites: ClassVar[bool] = False
    # Whether the rule wants to know the length of what came back.
    measures: ClassVar[bool] = False
    # Works on the model as it was when the request was filed: an ordinary round under way is given up, because its result
    # would be another one.
    as_it_was: ClassVar[bool] = False

    def __init__(self, options: Options) -> None:
        self.options = options

    def refuse(self, asked: Asked, state: State, config: FederationConfig) -> str | None:
        """Why a request cannot be served, and what would work; None where it can. Own reasons come on top of these."""
        if asked.scope not in self.requires.scopes:
            return (
                f"this federation forgets by {self.name}, which cannot forget single samples: ask for the whole client, "
                "or for a federation that forgets by puf"
            )
        if not self.requires.task_agnostic and config.task != "classification":
            return f"{self.name} is defined for classification only, this federation's task is {config.task}"
        if any(wish is not None for wish in (asked.mode, asked.flip, asked.kappa, asked.eta_u, asked.epochs)):
            return f"this federation forgets by {self.name}: mode, side, strength and epochs are PUF's; leave them away"
        return None

    def label(self, ticket: Ticket) -> str:
        """The method as a ticket names it."""
        return self.name

    def ready(self, ticket: Ticket, view: View) -> bool:
        """Whether an job for this ticket could run now."""
        if self.requires.target_takes_part and not view.alive(ticket.client):
            return False
        return view.enough or not self.requires.retained_take_part

    def hopeless(self, ticket: Ticket, state: State, config: FederationConfig) -> str | None:
        """Why a ticket that waits can never be served any more, and what would work; None where it still can."""
        return None

    def choose(self, waiting: Sequence[Ticket], view: View) -> list[Ticket]:
        """Which of the tickets that are ready share the job of the oldest."""
        return list(waiting) if self.requires.simultaneous else list(waiting[:1])

    def step(self, view: View) -> Step | None:
        """The next step of the job; None while there are too few clients for it."""
        raise NotImplementedError

    def possible(self, view: View) -> bool:
        """Whether the job still makes sense; not where everybody whom it needs has asked to be forgotten meanwhile."""
        return bool(view.retained) or not self.requires.retained_take_part

    def enough_came(self, view: View, retained: int) -> bool:
        """Whether a step with targets may close with so many retained contributions."""
        return True

    @property
    def recovery_bounds(self) -> tuple[int, int | None]:
        """Recovery rounds at least and at most; None: what the federation's policy says."""
        return 0, None

    def rule(self, combine: Combine, manifest: Manifest, updates: Sequence[UpdateBlock]) -> Rule:
        """How the blocks of a step are combined. `updates` have no blocks yet, only clients, samples and lengths."""
        if combine.rule == CombineRule.KEEP:
            return lambda block: block.w
        raise NotImplementedError(f"{self.name} has no rule {combine.rule}")


def installed(block: TensorBlock) -> NDArray[Any]:
    """What the one contribution stands for becomes the model; buffers come with it."""
    if block.tensor.role != "parameter":
        return mean_of_buffers(block)
    [update] = block.updates
    assert update.u is not None
    return block.w.astype(np.float64) + update.u.astype(np.float64)


def mean_of_buffers(block: TensorBlock) -> NDArray[Any]:
    """Buffers of what came back: floating ones become the mean, integers the maximum; as they are where nobody sent any."""
    updates = [p for p in block.updates if p.u is not None]
    if not updates:
        return block.w
    values = [p.u for p in updates if p.u is not None]
    if not block.tensor.floating:
        largest: NDArray[Any] = np.maximum.reduce(values)
        return largest
    n = sum(p.samples for p in updates)
    mean = np.zeros(block.w.size, np.float64)
    for update, value in zip(updates, values, strict=True):
        mean += np.multiply(value, update.samples / n, dtype=np.float64)
    return mean
