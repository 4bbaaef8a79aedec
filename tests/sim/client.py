"""A client: its worker, and its owner, who may ask that the client or some samples are forgotten.

The owner treats errors as puf_client.unlearning.request does.
"""

from __future__ import annotations

from typing import Any

from puf_common.errors import PufError, Unavailable
from puf_server.core.state.tickets import RequestForm, Scope, Ticket, TicketState
from tests.sim.client_state import Exclusion, Process, score
from tests.sim.worker import Worker

_APPLIED = (TicketState.APPLIED, TicketState.RECOVERING, TicketState.COMPLETED)
_ENDED = (TicketState.COMPLETED, TicketState.FAILED, TicketState.WITHDRAWN)


class Client(Worker):
    def lose_state(self) -> None:
        """Loses the disk. The next process knows no exclusion."""
        self.kill()
        if self.owner is not None:
            self.owner.alive = False
        self._lost |= self.exclusions
        self.exclusions = {}

    def name_again(self) -> None:
        """The owner names the forgotten samples again (`puf-client data exclude`), so that the worker may run."""
        self.exclusions = self._lost | self.exclusions
        self._lost = {}

    def ask(
        self, *, samples: bool = False, ids: frozenset[int] = frozenset(), late: float = 0.0, **wishes: Any
    ) -> None:
        """Stores which samples are meant, files the request, follows the ticket to its end."""
        if self.owner is not None and self.owner.alive:
            return
        owner = Process()
        self.owner = owner
        self.asked += 1
        key = f"k-{self.asked}"
        options: dict[str, Any] = {"key": key, "received_at": self.world.now - late if late else None, **wishes}

        def go() -> None:
            left = sorted(self._count())
            if (samples or ids) and len(left) > 1:
                drawn = ids or self.world.rng.sample(left, self.world.rng.randint(1, len(left) - 1))
                chosen = frozenset(drawn)
                self.exclusions[key] = Exclusion(chosen)
                self.world.checker.named[self.name, key] = chosen
                options.update(scope=Scope.SAMPLES, forget_samples=len(chosen), retain_samples=len(left) - len(chosen))
            self._file(owner, RequestForm(**options))

        self._settled(owner, go)

    def _file(self, owner: Process, request: RequestForm) -> None:
        if self.world.strikes("crash_owner"):
            owner.alive = False
            self.world.log(f"{self.name}'s owner died before filing")

        def filed(answer: Any) -> None:
            known = self.exclusions.get(request.key)
            if isinstance(answer, Unavailable):
                self.world.after(5.0, self._again, owner, lambda: self._file(owner, request))
            elif isinstance(answer, PufError):
                self.world.log(f"{self.name} was refused: {answer}")
                if known is not None:
                    del self.exclusions[request.key]
                owner.alive = False
            else:
                if known is not None and answer.request.key == request.key:
                    known.ticket = answer.id
                elif known is not None:
                    del self.exclusions[request.key]
                self._follow(owner, answer.id)
                if self.world.strikes("ask_twice"):
                    self._call(owner, lambda: self.world.server.file(self.name, request), lambda _: None)

        if owner.alive:
            self._call(owner, lambda: self.world.server.file(self.name, request), filed)

    def follow(self, ticket_id: str) -> None:
        """The same command again continues to follow the ticket."""
        if self.owner is None or not self.owner.alive:
            self.owner = Process()
            self._follow(self.owner, ticket_id)

    def _follow(self, owner: Process, ticket_id: str) -> None:
        self.following = ticket_id
        measured: set[int] = set()

        def look() -> None:
            if owner.alive:
                self._call(owner, lambda: self.world.server.ticket(self.name, ticket_id), seen)

        def seen(answer: Any) -> None:
            if isinstance(answer, Unavailable):
                self.world.after(10.0, look)
                return
            if isinstance(answer, PufError):
                owner.alive = False
                return
            ticket: Ticket = answer[0]
            if ticket.state in _APPLIED:
                if ticket.whole_client and ticket.membership >= self.membership:
                    self.forgotten = True
                known = ticket.applied.measurements if ticket.applied else {}
                for version in ticket.versions:
                    if version not in measured and version not in known:
                        measured.add(version)
                        self._measure(owner, ticket, version, measured)
            if ticket.state is TicketState.PENDING and self.world.strikes("withdraw"):
                for exclusion in self.exclusions.values():
                    exclusion.withdrawing = exclusion.withdrawing or exclusion.ticket == ticket_id
                # The client stores its wish before it tells the server.
                self.world.checker.taken_back(ticket)
                self._call(owner, lambda: self.world.server.withdraw(self.name, ticket_id), withdrawn)
            elif self.stands_in and ticket.state in (TicketState.PENDING, TicketState.SCHEDULED) and not answer[1]:
                self.start(only_if_no_worker=True)
            if ticket.state in _ENDED:
                owner.alive = False
                return
            if self.world.strikes("crash_owner"):
                owner.alive = False
                return
            self.world.after(self.world.rng.uniform(5.0, 30.0), look)

        def withdrawn(answer: Any) -> None:
            if not isinstance(answer, PufError):
                for exclusion in self.exclusions.values():
                    if exclusion.ticket == ticket_id:
                        exclusion.withdrawn = True

        look()

    def _measure(self, owner: Process, ticket: Ticket, version: int, measured: set[int]) -> None:
        """Measures a model and reports it. After a lost call it is measured again."""

        def again(answer: Any) -> None:
            if isinstance(answer, Unavailable):
                measured.discard(version)

        def fetched(answer: Any) -> None:
            again(answer)
            if isinstance(answer, PufError):
                return
            sums = score(self.world.scenario.seed, self.name, answer.digest, 10)
            self._call(owner, lambda: self.world.server.measure(self.name, ticket.id, version, sums), again)

        self._call(owner, lambda: self.world.server.fetch(self.name, version), fetched)
