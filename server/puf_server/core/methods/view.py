"""What a method sees of the federation when it plans a step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any

from puf_server.core import roster
from puf_server.core.config import FederationConfig
from puf_server.core.state.jobs import UnlearningJob
from puf_server.core.state.members import Member
from puf_server.core.state.presence import Presence
from puf_server.core.state.rounds import Assignment, Part
from puf_server.core.state.state import State
from puf_server.core.state.tickets import Ticket


@dataclass(frozen=True, slots=True)
class Target:
    ticket: Ticket
    member: Member

    @property
    def forget_samples(self) -> int:
        """All samples of a whole client, also those that its request took over from earlier ones."""
        whole = self.member.samples + self.ticket.taken_samples
        return whole if self.ticket.whole_client else self.ticket.forget_samples

    @property
    def all_samples(self) -> int:
        """The samples to forget and, for single samples, those that remain."""
        return self.forget_samples + (0 if self.ticket.whole_client else self.member.samples)

    def assignment(self, *, samples: int, epochs: float, **changes: Any) -> Assignment:
        """The target's assignment for the data to forget."""
        return Assignment(
            client=self.member.name,
            membership=self.member.membership,
            part=Part.MAIN if self.ticket.whole_client else Part.FORGET,
            samples=samples,
            epochs=epochs,
            ticket=self.ticket.id,
            taken=self.ticket.taken_samples,
            **changes,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """The state, the presence of workers, and the job under way."""

    state: State
    presence: Presence
    config: FederationConfig
    now: float
    # None while tickets wait for a job: `about` names them.
    job: UnlearningJob | None = None
    about: tuple[str, ...] = ()

    @property
    def started(self) -> UnlearningJob:
        """The job. Only for methods that plan one of its steps."""
        assert self.job is not None
        return self.job

    @property
    def targets(self) -> list[Target]:
        tickets = [self.state.tickets[t] for t in (self.job.tickets if self.job else self.about)]
        return [Target(t, self.state.members[t.client]) for t in tickets]

    @property
    def model(self) -> int:
        """The version that the job's last step made; before the first step, the federation's version."""
        made = self.started.working
        return self.state.version if made is None else made

    @property
    def retained(self) -> list[Member]:
        """Clients that train without the data to forget: retained clients, and targets that keep some samples."""
        whole = {t.client for t in self.state.tickets.values() if t.keeps_out and t.whole_client}
        back = [t.member for t in self.targets if not t.ticket.whole_client and t.member.name not in whole]
        return sorted([*roster.retained(self.state), *(m for m in back if m.trains)], key=lambda m: m.name)

    def alive(self, name: str) -> bool:
        return roster.worker_alive(self.presence, name, self.config, self.now)

    def cohort(self, *, drawn_as: int | None = None) -> list[Member]:
        """The plan's share of the retained clients that are alive. `drawn_as` draws as in the round of that number."""
        return roster.cohort(self.retained, self.state, self.presence, self.config, self.now, round_number=drawn_as)

    @property
    def enough(self) -> bool:
        """Whether enough retained clients are alive for a round without targets to close."""
        members = self.retained
        alive = sum(self.alive(m.name) for m in members)
        return alive >= max(1, ceil(self.config.plan.participation * self.config.plan.quorum * len(members)))

    def ordinary(self, members: Sequence[Member], **changes: Any) -> tuple[Assignment, ...]:
        """Assignments of ordinary training. A target that forgets single samples trains on the remaining ones."""
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
