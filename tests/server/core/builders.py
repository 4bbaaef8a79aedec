"""Small federations for tests of the core, without tensors."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from puf_common.receipts.gap import DoseReport, Gap
from puf_server.core import roster, rounds, scheduler, tickets
from puf_server.core.commits import ModelFile
from puf_server.core.config import FederationConfig, Forgetting, Limits, Plan, Recipe
from puf_server.core.state.measurements import Sums
from puf_server.core.state.models import ModelStatus, ModelVersion
from puf_server.core.state.presence import Presence, after_restart, settled
from puf_server.core.state.rounds import Assignment, Part, ReceivedUpdate, Round, RoundKind
from puf_server.core.state.state import State
from puf_server.core.state.tickets import FiledBy, Flip, Mode, RequestForm, Scope, Strength, Ticket
from puf_server.core.unlearning import evaluation
from tests.tables import by_class


def config(**changes: Any) -> FederationConfig:
    """A configuration without periodic evaluations and without a budget of forgetting."""
    plan = Plan(**{"rounds": 2, "min_clients": 2, "evaluate_every": 0, "keep_models": 0} | changes.pop("plan", {}))
    forgetting = Forgetting(**{"measure_seconds": 0.0, "strength": "fixed"} | changes.pop("forgetting", {}))
    recipe = Recipe(**changes.pop("recipe", {}))
    limits = Limits(**{"forget_share": 1.0} | changes.pop("limits", {}))
    return FederationConfig(
        id="f", model="m", plan=plan, forgetting=forgetting, recipe=recipe, limits=limits, **changes
    )


def initial(c: FederationConfig) -> State:
    model = ModelVersion(version=0, round=0, digest="00", nbytes=8, status=ModelStatus.READY, created_at=0.0)
    return State(planned=c.plan.rounds, models={0: model})


def header(current: Round, assignment: Assignment, dose: DoseReport | None = None) -> rounds.UpdateHeader:
    """The header of an update that fits its assignment."""
    scale = assignment.scale * dose.kappa if dose else assignment.scale
    return rounds.UpdateHeader(
        membership=assignment.membership,
        number=current.number,
        attempt=current.attempt,
        part=assignment.part,
        base=current.base,
        samples=assignment.samples,
        applied_scale=scale if assignment.flip == "client" else 1.0,
        dose=dose,
    )


@dataclass
class Federation:
    """The core with a manual clock. A fold is a commit of an invented digest."""

    config: FederationConfig
    state: State = field(init=False)
    presence: Presence = field(default_factory=Presence)
    now: float = 1000.0

    def __post_init__(self) -> None:
        self.state = initial(self.config)

    @property
    def round(self) -> Round:
        assert self.state.round is not None
        return self.state.round

    def apply(self, state: State) -> None:
        """What the engine does after a change."""
        before = self.state
        self.presence = settled(self.presence, before, state)
        self.state = scheduler.advance(state, self.presence, self.config, self.now)
        self.presence = settled(self.presence, before, self.state)

    def join(self, *names: str, samples: int = 10, holdout: int = 5, **request: Any) -> None:
        for name in names:
            stated = {"instance": f"i-{name}", "token": "t"} | request
            wanted = roster.JoinRequest(samples=samples, holdout=holdout, **stated)
            joined = roster.join(self.state, self.presence, self.config, name, wanted, self.now)
            self.presence = self.presence.heard(name, self.now)
            self.apply(rounds.samples_changed(joined, name, self.now))

    def restart(self, state: State) -> None:
        """The server starts with this state."""
        self.state, self.presence = state, after_restart(state, self.now)

    def beat(self, *names: str, activity: str = "") -> None:
        for name in names:
            roster.session_member(self.state, name, self.state.members[name].session)
            self.presence = self.presence.heard(name, self.now, activity)

    def wait(self, seconds: float, *alive: str) -> None:
        self.now += seconds
        self.beat(*alive)
        self.apply(self.state)

    def submit(
        self, name: str, part: Part = Part.MAIN, digest: str = "aa", kappa: float = 0.0, gap: float = 0.0
    ) -> bool:
        """Sends an update. A dose has the smallest kappa, unless it is stated. A gap of at most 0.2 is a hold."""
        current = self.round
        assignment = next(s for s in current.assignments if (s.client, s.part) == (name, part))
        dose = None
        if assignment.routine == "dose":
            dose = DoseReport(
                kappa=kappa or assignment.options["min_kappa"], gap=Gap(value=gap, error=0.05), hold=gap <= 0.2
            )
        update = ReceivedUpdate(
            digest=digest,
            samples=assignment.samples,
            nbytes=8,
            train_loss=1.0,
            samples_processed=assignment.samples,
            at=self.now,
            dose=dose,
        )
        stated = header(current, assignment, dose)
        state, duplicate = rounds.receive(self.state, name, stated, update)
        self.apply(state)
        return duplicate

    def submit_all(self) -> None:
        for assignment in self.round.missing:
            self.submit(assignment.client, assignment.part)

    def commit(self) -> None:
        digest = f"{self.state.version + 1:02x}"
        self.apply(scheduler.committed(self.state, self.config, ModelFile(digest=digest, nbytes=8), self.now))

    def run_round(self, kind: RoundKind) -> Round:
        current = self.round
        assert current.kind is kind
        self.submit_all()
        self.commit()
        return current

    def train(self) -> None:
        while self.state.trained < self.state.planned:
            self.run_round(RoundKind.TRAIN)

    def answer_evaluation(self, score: float, confidence: float | None = None, samples: int = 10) -> None:
        """Every client answers with samples of this score. With a confidence they also report one class."""
        asked = self.state.evaluation
        assert asked is not None
        for name in asked.missing:
            classes = None
            if confidence is not None:
                classes = by_class((samples,), (samples * confidence,), (samples * confidence**2,))
            sums = Sums(samples=samples, loss_sum=1.0, score_sum=samples * score, classes=classes)
            self.apply(evaluation.answer(self.state, name, asked.id, asked.version, sums))

    def file(self, name: str, **request: Any) -> Ticket:
        enums: dict[str, Any] = {"scope": Scope, "mode": Mode, "flip": Flip, "by": FiledBy, "strength": Strength}
        stated = {field: enums.get(field, lambda value: value)(value) for field, value in request.items()}
        wanted = RequestForm(**{"key": f"k-{name}"} | stated)
        state, ticket, _ = tickets.file(
            self.state, self.presence, self.config, name, wanted, ticket_id=f"t-{len(self.state.tickets)}", now=self.now
        )
        self.apply(state)
        return self.state.tickets[ticket.id]

    def ticket(self, ticket_id: str) -> Ticket:
        return self.state.tickets[ticket_id]
