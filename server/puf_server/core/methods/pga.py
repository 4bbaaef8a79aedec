"""PGA (Halimi et al. 2022): the target does gradient ascent inside a ball, and the result becomes the model.

    w_ref = (w - p * w_u) / (1 - p)      the ball's centre: the others' average in the round that made w
    w     <- P(w + lr * momentum(clip(g)))

The target computes all of it (routine `ascent`), from its last local model w_u, which it stores on its disk. The server
knows p, the target's share of the samples in that round, and installs the result. The server cannot check that the
result lies in the ball: it stores no update of the target.

The target must have taken part in the round that made the model. Other requests are refused. A request that no longer
meets the condition while it waits goes to the fallback.
"""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field

from puf_common.tensors.manifest import Manifest
from puf_server.core.config import FederationConfig
from puf_server.core.methods.base import Method, Options, Requirements, Step, StoredHistory, View
from puf_server.core.methods.blocks import Rule, UpdateBlock, installed
from puf_server.core.state.members import Member
from puf_server.core.state.rounds import Combine, CombineRule, RoundKind
from puf_server.core.state.state import State
from puf_server.core.state.tickets import RequestForm, Scope, Ticket


class PgaOptions(Options):
    """The published values. Distances are L2."""

    lr: float = Field(0.01, gt=0, description="rate of the ascent")
    epochs: float = Field(5.0, gt=0, description="largest number of passes over the target's data")
    momentum: float = Field(0.9, ge=0, lt=1, description="momentum of the ascent")
    clip: float = Field(5.0, ge=0, description="largest norm of a gradient over all parameters; 0: none")
    batch_size: int = Field(0, ge=0, description="batch size of the ascent; 0: the recipe's (published: 512 or 1024)")
    delta_l2: float = Field(
        0.0, ge=0, description="radius of the ball; 0: a third of the mean distance to 10 random models"
    )
    squared_radius: bool = Field(
        False, description="derive the radius as the public code does: sqrt(mean squared distance / 3)"
    )
    stop_distance: float = Field(
        6.5,
        ge=0,
        description="stop at this distance from the target's last model; 0: never (published: 9 for IID data)",
    )

    def routine(self, share: float, last_round: int) -> dict[str, float]:
        """Options of the routine `ascent` for a target with this share of the samples of that round."""
        mine = self.model_dump(
            include={"momentum", "clip", "batch_size", "delta_l2", "squared_radius", "stop_distance"}
        )
        return {"share": share, "last_round": last_round, **{name: float(value) for name, value in mine.items()}}


class Pga(Method):
    name = "pga"
    summary = "the target does gradient ascent in a ball around the other clients' last average"
    requires = Requirements(
        full_participation=True,
        stateful_clients=True,
        simultaneous=False,
        target_takes_part=True,
        scopes=(Scope.CLIENT,),
    )
    stores = StoredHistory(last_local_model=True, survives_rewrite=True)
    options_type = PgaOptions
    options: PgaOptions
    as_it_was = True
    plain_averages = True

    def refuse(self, client: str, form: RequestForm, state: State, config: FederationConfig) -> str | None:
        refused = super().refuse(client, form, state, config)
        member = state.members.get(client)
        if refused is not None or member is None or member.first_round == 0:
            return refused
        other = next((t for t in state.tickets.values() if t.waiting and t.client != client), None)
        if other is not None:
            return (
                f"pga forgets one client at a time, and ticket {other.id} already waits: ask again when it is applied and "
                "this client has taken part in another round"
            )
        return _unfit(member, state, config)

    def hopeless(self, ticket: Ticket, state: State, config: FederationConfig) -> str | None:
        member = state.members[ticket.client]
        why = _unfit(member, state, config) if member.first_round else None
        return f"{why}; withdraw this request first" if why else None

    def step(self, view: View) -> Step:
        [target] = view.targets
        last = view.state.models[view.state.version].round
        assignment = target.assignment(
            samples=target.forget_samples,
            epochs=self.options.epochs,
            routine="ascent",
            options=self.options.routine(share(target.member, view.state) or 0.0, last),
            lr=self.options.lr,
        )
        return Step(
            base=view.state.version, assignments=(assignment,), combine=Combine(rule=CombineRule.INSTALL), last=True
        )

    def rule(self, combine: Combine, manifest: Manifest, updates: Sequence[UpdateBlock]) -> Rule:
        # Buffers stay as they are: they are not part of the ball, and would bring in the target's data.
        return lambda block: installed(block) if block.tensor.role == "parameter" else block.w


def share(member: Member, state: State) -> float | None:
    """p: the client's share of the samples in the round that made the model; None if it took no part in that round."""
    record = state.records.get(state.models[state.version].round)
    if record is None or record.kind not in (RoundKind.TRAIN, RoundKind.RECOVER) or member.last_round != record.number:
        return None
    return member.last_samples / record.samples if record.samples and member.last_samples else None


def _unfit(member: Member, state: State, config: FederationConfig) -> str | None:
    instead = "the operator can set a fallback such as retrain"
    if config.plan.server_lr != 1:
        return f"pga needs models that are plain averages, but this federation's server_lr is {config.plan.server_lr:g}"
    part = share(member, state)
    if part is None:
        made = state.models[state.version].round
        return (
            f"pga needs a client that took part in the round that made the model ({made}); {member.name} last took part in "
            f"round {member.last_round}: ask again after another round with this client, or {instead}"
        )
    if part >= 1:
        return f"pga needs other clients in the round that made the model, but {member.name} was alone in it: {instead}"
    return None
