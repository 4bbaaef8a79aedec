"""What a method of unlearning is. The service and the lab run the same methods.

A method declares what it `requires` and refuses requests that it cannot serve. It plans: from the state and the progress
of the job it names the next `Step`. A step is a round like any other: its cohort is on disk before a client is asked,
updates are stored before they are acknowledged, a restart continues it. In a step, clients run a routine from a model, and
a rule combines their updates. The result is the model, a model on the way to it, or an auxiliary one. A step without
assignments is work of the server alone. The commit of the last step applies the tickets.

The file of a method holds its equations, as a rule over blocks of tensors. The server streams the blocks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from pydantic import BaseModel, ConfigDict

from puf_common.tensors.manifest import Manifest
from puf_server.core.config import FederationConfig
from puf_server.core.methods.blocks import Rule, TensorBlock, UpdateBlock
from puf_server.core.methods.products import Products
from puf_server.core.methods.view import Target, View
from puf_server.core.state.rounds import Combine, CombineRule, Round, Step
from puf_server.core.state.state import State
from puf_server.core.state.tickets import RequestForm, Scope, Ticket

__all__ = [
    "Method",
    "Options",
    "Products",
    "Requirements",
    "Rule",
    "Step",
    "StoredHistory",
    "Target",
    "TensorBlock",
    "UpdateBlock",
    "View",
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
class StoredHistory:
    """What a method needs to be stored in ordinary rounds. Clients learn it when they join."""

    # The norms of every update, per round and client.
    norms: bool = False
    # The updates of the first round.
    first_updates: bool = False
    # Per client, the sum of its updates as they entered the model.
    sums: bool = False
    # Per round and client, the distance of the round's model from the same round without the client.
    spreads: bool = False
    # All model versions.
    checkpoints: bool = False
    # On the client's disk: its last local model.
    last_local_model: bool = False
    # Whether it is still valid after another method rebuilt the model from w_0.
    survives_rewrite: bool = False

    @property
    def words(self) -> tuple[str, ...]:
        """The kinds of history, as the contract names them."""
        names = ("norms", "first_updates", "sums", "spreads", "checkpoints", "last_local_model")
        return tuple(name.replace("_", "-") for name in names if getattr(self, name))


class Options(BaseModel):
    """A method's own parameters, given as name=value."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Method:
    """Base class of all methods: options and pure functions. What a method needs later is in the state."""

    name: ClassVar[str]
    # One line for lists of methods.
    summary: ClassVar[str]
    requires: ClassVar[Requirements]
    stores: ClassVar[StoredHistory] = StoredHistory()
    options_type: ClassVar[type[Options]] = Options
    # The model is rebuilt from w_0 or a checkpoint, so that no update of the old model is in it.
    rewrites: ClassVar[bool] = False
    # Whether the rule needs the norms of the updates.
    measures: ClassVar[bool] = False
    # Works on the model of the moment of filing: an open ordinary round is abandoned, because it would change the model.
    as_it_was: ClassVar[bool] = False
    # Rebuilds or subtracts rounds as averages of updates: not possible if the server steps by moments.
    plain_averages: ClassVar[bool] = False
    # Routines of the user's code that its assignments name, as package.module:function. Clients list them themselves.
    routines: ClassVar[tuple[str, ...]] = ()

    def __init__(self, options: Options) -> None:
        self.options = options

    def refuse(self, client: str, form: RequestForm, state: State, config: FederationConfig) -> str | None:
        """Why a request cannot be served, and what would work; None if it can. A method adds its own reasons."""
        if form.scope not in self.requires.scopes:
            return (
                f"this federation forgets by {self.name}, which cannot forget single samples: ask for the whole client, "
                "or for a federation that forgets by puf"
            )
        if not self.requires.task_agnostic and config.task != "classification":
            return f"{self.name} is defined for classification only, this federation's task is {config.task}"
        if any(wish is not None for wish in (form.mode, form.flip, form.strength, form.kappa, form.eta_u, form.epochs)):
            return (
                f"this federation forgets by {self.name}: mode, side, strength and epochs belong to PUF; leave them out"
            )
        return None

    def label(self, ticket: Ticket) -> str:
        """The method as a ticket names it."""
        return self.name

    def ready(self, ticket: Ticket, view: View) -> bool:
        """Whether a job for this ticket could run now."""
        if self.requires.target_takes_part and not view.alive(ticket.client):
            return False
        return view.enough or not self.requires.retained_take_part

    def hopeless(self, ticket: Ticket, state: State, config: FederationConfig) -> str | None:
        """Why a waiting ticket can no longer be served, and what would work; None if it can."""
        return None

    def choose(self, waiting: Sequence[Ticket], view: View) -> list[Ticket]:
        """The ready tickets that share a job with the oldest one."""
        return list(waiting) if self.requires.simultaneous else list(waiting[:1])

    def step(self, view: View) -> Step | None:
        """The next step of the job; None while too few clients are alive."""
        raise NotImplementedError

    def unable(self, ticket: Ticket, view: View) -> str | None:
        """Why strength cannot adapt for this ticket, asked before the first step; None if it can, or is fixed."""
        return None

    def evaluates(self, view: View) -> bool:
        """Whether clients have to evaluate the job's model before the next step."""
        return False

    def settle(self, view: View, current: Round) -> Step:
        """The step of a round that closes now. A method may decide by what the clients reported that it is the last."""
        return current.step

    def rate(self, config: FederationConfig) -> float | None:
        """The clients' learning rate in recovery; None: that of the round's number."""
        return None

    def recovery_step(self, view: View, step: Step) -> Step:
        """The step of a recovery round. `step` is an ordinary one: a method may change routines, options or the rule."""
        return step

    def possible(self, view: View) -> bool:
        """Whether the job can still run: the clients that it needs have not all asked to be forgotten."""
        return bool(view.retained) or not self.requires.retained_take_part

    def enough_came(self, view: View, retained: int) -> bool:
        """Whether a step with targets may close with this number of retained updates."""
        return True

    @property
    def recovery_bounds(self) -> tuple[int, int | None]:
        """The least and the largest number of recovery rounds of every job; None: the federation's policy."""
        return 0, None

    def factors(self, combine: Combine, updates: Sequence[UpdateBlock], products: Products) -> Mapping[str, float]:
        """The factor of each vector in a step with the rule LINEAR; missing ones are 0. `updates` have no values here."""
        raise NotImplementedError(f"{self.name} has no factors")

    def recovery_rounds(self, method_state: Mapping[str, float | int | str]) -> tuple[int, int | None]:
        """The least and the largest number of recovery rounds of this job; None: the federation's policy."""
        return self.recovery_bounds

    def rebuilt_from(self, method_state: Mapping[str, float | int | str]) -> int:
        """The round whose model a method that `rewrites` began with. History of later rounds is outdated."""
        return 0

    def rule(self, combine: Combine, manifest: Manifest, updates: Sequence[UpdateBlock]) -> Rule:
        """How a step combines blocks. `updates` have no values here, only clients, samples and norms."""
        if combine.rule == CombineRule.KEEP:
            return lambda block: block.w
        raise NotImplementedError(f"{self.name} has no rule {combine.rule}")
