"""What must hold after every transaction. The checks use the promises of the service, not helpers of the core."""

from __future__ import annotations

from collections import Counter
from dataclasses import fields

from puf_server.core.state.members import MemberStatus
from puf_server.core.state.models import ModelStatus, ModelVersion
from puf_server.core.state.rounds import RoundKind, RoundPhase
from puf_server.core.state.state import State
from puf_server.core.state.tickets import Ticket, TicketEvent, TicketState
from puf_server.storage.layout import history_name, spool_name
from puf_server.storage.state_rows import VOLATILE
from tests.canary import searched, windows
from tests.sim.commit_checks import CommitChecks
from tests.sim.disk import model_name
from tests.sim.facts import Acked, Violation, asked_out, require, too_few_retained

__all__ = ["Checker", "Violation"]

_S = TicketState
MOVES = {
    (_S.PENDING, _S.SCHEDULED),
    (_S.SCHEDULED, _S.PENDING),
    (_S.SCHEDULED, _S.APPLIED),
    # Nothing to forget, or no retained client is left.
    (_S.PENDING, _S.APPLIED),
    (_S.APPLIED, _S.RECOVERING),
    (_S.APPLIED, _S.COMPLETED),
    (_S.RECOVERING, _S.COMPLETED),
    # Another method follows.
    (_S.APPLIED, _S.SCHEDULED),
    (_S.RECOVERING, _S.SCHEDULED),
    (_S.PENDING, _S.FAILED),
    (_S.PENDING, _S.WITHDRAWN),
    # A receipt of its completion was shown to a restored state.
    (_S.FAILED, _S.PENDING),
    # A failed request that was asked again, or withdrawn.
    (_S.FAILED, _S.WITHDRAWN),
}
PERSISTENT = [f.name for f in fields(State) if f.name not in VOLATILE]


class Checker(CommitChecks):
    def transaction(self, before: State | None, after: State) -> None:
        self.steps += 1
        if before is None:
            self.lineage[0] = self.store.weights(after.models[0])
            self._last = after
            return
        self._numbers(before, after)
        for event in after.notes:
            if event.event.startswith("ticket."):
                self._audited[str(event.facts["ticket"]), event.event] += 1
        if before.tickets is not after.tickets:
            self._tickets(before, after)
        if after.newest != before.newest:
            self._commit(before, after)
        if before.members is not after.members:
            self._members(before, after)
        self._round(before, after)
        if before.models is not after.models:
            self._models(before, after)
        self._last = after

    def survived(self) -> None:
        """A new process finds what the last transaction wrote."""
        loaded = self.store.load()
        for name in PERSISTENT:
            require(getattr(loaded, name) == getattr(self._last, name), f"{name} changed over a restart")

    def restored(self, state: State) -> None:
        """An older state was restored: later events did not happen for this server, although clients have receipts of them."""
        self._last = state
        # Includes models that an earlier restore had removed: this backup may be older than that restore.
        kept = {v: self.store.weights(m) for v, m in state.models.items() if m.status is not ModelStatus.DELETED}
        self.lineage = {v: kept.get(v) or self.lineage[v] for v in state.models if v in kept or v in self.lineage}
        for key, fate in self._acked.items():
            self._acked[key] = fate or "void"
        self._acked = {key: fate for key, fate in self._acked.items() if key.number <= state.number}
        self._attempts = {k: v for k, v in self._attempts.items() if k[0] <= state.number}
        self._scales = {k: v for k, v in self._scales.items() if k[0] <= state.number}
        self._applied = Counter(
            {
                t.id: 1
                for t in state.tickets.values()
                if self._applied[t.id] and t.applied and t.applied.version_unlearned
            }
        )
        gone = {(m.name, m.membership) for m in state.members.values() if m.status is not MemberStatus.ACTIVE}
        gone |= {(m.name, n) for m in state.members.values() for n in range(1, m.membership)}
        # After an earlier restore another round may have forgotten the client.
        applied = {
            (t.client, t.membership): t.applied.version_unlearned
            for t in state.tickets.values()
            if t.whole_client and t.applied and t.applied.version_unlearned is not None
        }
        self._forgotten = {who: applied.get(who, v) for who, v in self._forgotten.items() if who in gone}
        self._reopened = {t.id for t in state.tickets.values() if t.reopened}
        # A withdrawal that the backup does not have did not happen.
        lost = [t for t in state.tickets.values() if t.state is not _S.WITHDRAWN]
        self._taken_back -= {(t.client, t.request.key) for t in lost}
        self._audited = Counter(
            (str(facts["ticket"]), event) for _, event, facts in self.store.audit if event.startswith("ticket.")
        )

    def files(self, state: State) -> None:
        """Every file that a record names exists, and no other file."""
        current = state.round
        for key in current.received if current is not None else ():
            assert current is not None
            require(spool_name(current, key) in self.store.spool.files, f"the acknowledged update {key} was lost")
        names = {model_name(m) for m in state.models.values() if m.status is not ModelStatus.DELETED}
        require(names <= self.store.models.keys(), f"model files are lost: {names - self.store.models.keys()}")
        coming = f"v{state.newest + 1:06d}-"
        left = {name for name in self.store.models.keys() - names if not name.startswith(coming)}
        require(not left, f"deleted models are still on disk: {left}")
        kept = {history_name(r) for r in state.history.values() if r.digest}
        require(kept <= self.store.history.keys(), "stored history is lost")
        for r in state.history.values():
            require((r.client, r.membership) not in self._forgotten, f"{r.key} is kept, {r.client} is forgotten")

    def _numbers(self, before: State, after: State) -> None:
        require(after.newest - before.newest in (0, 1), "versions jump")
        require(after.number - before.number in (0, 1), "round numbers jump")
        require((after.newest > before.newest) == (after.number > before.number), "a round is a version")
        require(after.version in (before.version, after.newest), "the model is neither the old one nor the new one")
        require(before.records.items() <= after.records.items(), "records of committed rounds change")
        require(after.evaluations >= before.evaluations and after.trained >= before.trained, "counters run backwards")
        if after.number == before.number:
            require(after.attempt >= before.attempt, "attempts run backwards")

    def _tickets(self, before: State, after: State) -> None:
        require(before.tickets.keys() <= after.tickets.keys(), "a ticket vanished")
        noted = Counter((str(n.facts.get("ticket")), n.event) for n in after.notes)
        for ticket_id, ticket in after.tickets.items():
            old = before.tickets.get(ticket_id)
            if old is ticket:
                continue
            path = ticket.history
            self._reopened |= {ticket_id} if ticket.reopened else set()
            if old is None:
                require(path[0].state is _S.PENDING, f"{ticket_id} does not start as pending")
                how = "ticket.reopened" if ticket.reopened else "ticket.filed"
                require(noted[ticket_id, how] == 1, f"filing {ticket_id} is not in the audit log")
                new = path[1:]
                start = _S.PENDING
            else:
                require(path[: len(old.history)] == old.history, f"the history of {ticket_id} was rewritten")
                new, start = path[len(old.history) :], old.state
                same = (old.client, old.membership, old.request) == (ticket.client, ticket.membership, ticket.request)
                require(same, f"{ticket_id} asks for something else now")
            new = _moves(new, start)
            for step in new:
                require((start, step.state) in MOVES, f"{ticket_id} went from {start} to {step.state}")
                if step.state is _S.FAILED:
                    require(bool(step.note), f"{ticket_id} failed without a reason")
                    who = (ticket.client, ticket.membership)
                    require(who not in self._forgotten, f"{ticket_id} failed though {who} is forgotten")
                start = step.state
            require(start is ticket.state, f"{ticket_id} is {ticket.state}, its history says {start}")
            for state, times in Counter(step.state for step in new).items():
                require(noted[ticket_id, f"ticket.{state}"] == times, f"{ticket_id}: {state} is not in the audit log")
        scheduled = {t.id for t in after.tickets.values() if t.state is _S.SCHEDULED}
        require(scheduled == set(after.job.tickets if after.job else ()), "scheduled is not the job")

    def _round(self, before: State, after: State) -> None:
        current, old = after.round, before.round
        if current is None or current is old:
            if current is None and old is not None and after.number == before.number:
                self._void(old.number, old.attempt)
            return
        ident = (current.number, current.attempt)
        if old is not None and (old.number, old.attempt) != ident and after.number == before.number:
            self._void(old.number, old.attempt)
        require(current.number == after.number + 1, "a round is not the next one")
        terms = (current.base, current.kind, current.denominator, current.lr)
        require(self._attempts.setdefault(ident, terms) == terms, f"attempt {ident} was used with another base")
        for assignment in current.assignments:
            samples = assignment.samples if current.denominator is not None else 0
            fixed = (
                assignment.scale,
                assignment.flip,
                samples,
                assignment.membership,
                assignment.negated,
                assignment.ticket,
            )
            known = self._scales.setdefault((*ident, assignment.key), fixed)
            require(known == fixed, f"attempt {ident} was used with another scale for {assignment.key}")
            require(assignment.negated == (assignment.scale < 0), f"{assignment.key}: sign and side differ")
        if old is not None and ident == (old.number, old.attempt):
            out = asked_out(after)
            for key in old.received.keys() - current.received.keys():
                name = key.split("/")[0]
                member = after.members[name]
                gone = name in out or any(
                    t.client == name and t.id not in before.tickets for t in after.tickets.values()
                )
                lost = any(n.event == "round.update_lost" and n.facts["key"] == key for n in after.notes)
                require(gone or lost, f"the acknowledged update {key} was dropped")
                why, part = "it was damaged" if lost else "its client asked to be forgotten", key.split("/")[1]
                self._settle(name, member.membership, *ident, why, part if lost else "")
            for key in current.received.keys() - old.received.keys():
                name, part = key.split("/")
                booked = Acked(name, after.members[name].membership, *ident, part, current.received[key].digest)
                # A client that withdrew its request sent it again: it counts, even if the client gets no reply.
                if booked in self._acked:
                    self._acked[booked] = ""
        if current.kind is not RoundKind.UNLEARN:
            out = asked_out(after)
            require(not any(s.client in out for s in current.assignments), "a client that asked has ordinary work")
            require(not any(s.ticket or s.negated for s in current.assignments), "an ordinary round has targets")
        else:
            if current.method == "puf":
                require(any(s.negated for s in current.assignments), "an unlearning round without a target")
                require(current.step.last, "PUF is one round")
            require(after.job is not None, "an unlearning round without its job")
            if after.job is not None:
                require(set(current.tickets) == set(after.job.tickets), "round and job differ")
        # A client that joins later does not change what a closed round needs.
        closed = current is not before.round and current.phase is RoundPhase.FOLDING
        if closed and current.kind is RoundKind.UNLEARN:
            possible = [m for m in after.members.values() if m.trains and m.name not in asked_out(after)]
            needed = self.store.config.forgetting.min_retained if possible else 0
            again = before.round is not None and before.round.phase is RoundPhase.FOLDING
            self._others = min(self._others, needed) if again else needed
        for assignment in current.assignments:
            require(
                (assignment.client, assignment.membership) not in self._forgotten,
                f"{assignment.client} has work, but is forgotten",
            )

    def _members(self, before: State, after: State) -> None:
        for name, member in after.members.items():
            old = before.members.get(name)
            if old is None:
                require(member.membership == 1, f"{name} starts with membership {member.membership}")
                continue
            require(member.samples >= 0, f"{name} has {member.samples} samples")
            require(member.generation >= old.generation, f"sessions of {name} run backwards")
            change = (old.status, member.status)
            if member.membership != old.membership:
                require(old.status is MemberStatus.READMITTED, f"{name} came back without operator approval")
                require(member.membership == old.membership + 1, f"{name}: membership jumps")
            elif change[0] is not change[1]:
                allowed = {
                    (MemberStatus.ACTIVE, MemberStatus.FORGOTTEN),
                    (MemberStatus.FORGOTTEN, MemberStatus.READMITTED),
                }
                require(change in allowed, f"{name} went from {old.status} to {member.status}")
            if member.status is MemberStatus.FORGOTTEN and old.status is MemberStatus.ACTIVE:
                mine = [t for t in after.tickets.values() if (t.client, t.membership) == (name, member.membership)]
                done = (_S.APPLIED, _S.RECOVERING, _S.COMPLETED)
                asked = any(t.whole_client and (t.state in done or t.escalated) for t in mine)
                require(asked, f"{name} was forgotten without having asked")
                self._forgotten[name, member.membership] = after.version

    def _models(self, before: State, after: State) -> None:
        require(before.models.keys() <= after.models.keys(), "a model's record vanished")
        for version, model in after.models.items():
            old = before.models.get(version)
            if old is not None and old.status is ModelStatus.DELETED:
                require(model.status is ModelStatus.DELETED, f"model {version} came back")
        require(after.models[after.version].status is not ModelStatus.DELETED, "the newest model was deleted")
        for ticket in (after.tickets[i] for i in self._reopened):
            if self._unserved(after, ticket):
                known = [
                    v for v, m in after.models.items() if m.status is ModelStatus.READY and self._contains(v, ticket)
                ]
                require(not known, f"models {known} are ready and contain what {ticket.id} had forgotten before")
        for ticket in after.tickets.values():
            old_ticket = before.tickets.get(ticket.id)
            if ticket.state is _S.COMPLETED and (old_ticket is None or old_ticket.state is not _S.COMPLETED):
                self._completed(after, ticket)

    def _contains(self, version: int, ticket: Ticket) -> bool:
        """Whether a model contains updates on the data of a request."""
        who, model = (ticket.client, ticket.membership), self.lineage[version]
        return who in model.knows if ticket.whole_client else bool(self.ids_of(ticket) & model.samples.get(who, set()))

    def _completed(self, after: State, ticket: Ticket) -> None:
        """Models that contain the client are deleted when its ticket is completed."""
        unlearned = ticket.applied.version_unlearned if ticket.applied else None
        if unlearned is None:
            return
        who = (ticket.client, ticket.membership)
        for version, model in after.models.items():
            if version < unlearned and model.status is not ModelStatus.DELETED:
                knows = who in self.lineage[version].knows
                require(not knows, f"model {version} knew {who} and outlived {ticket.id}")

    def served(self, state: State, name: str, model: ModelVersion) -> None:
        require(model.status is not ModelStatus.DELETED, f"deleted model {model.version} was served")
        mine = [t for t in state.tickets.values() if t.client == name]
        # While a reopened request waits, there is no other model to train on.
        before = {t.client for t in state.tickets.values() if t.reopened and t.state is not _S.COMPLETED}
        again = any(t.client in before and (t.waiting or t.state is _S.FAILED) for t in state.tickets.values())
        if model.status is ModelStatus.WITHDRAWN and not again:
            owner = any(model.version in t.versions for t in mine)
            require(owner, f"withdrawn model {model.version} was served to {name}")
        if state.members[name].status is not MemberStatus.ACTIVE:
            owner = any(model.version in t.versions for t in mine)
            require(owner, f"{name} is forgotten and got model {model.version}")

    def ended(self, state: State) -> None:
        loaded = self.store.load()
        for name in PERSISTENT:
            require(getattr(loaded, name) == getattr(state, name), f"{name} in memory is not {name} on disk")
        for ticket in state.tickets.values():
            over = not ticket.open or ticket.on_hold or too_few_retained(state, self.store.config, ticket)
            require(bool(over), f"{ticket.id} is still {ticket.state}")
            how = "ticket.reopened" if ticket.reopened else "ticket.filed"
            require(self._audited[ticket.id, how] == 1, f"{ticket.id} was filed twice")
            for step, times in Counter(s.state for s in _moves(ticket.history[1:], _S.PENDING)).items():
                audited = self._audited[ticket.id, f"ticket.{step}"]
                require(audited == times, f"{ticket.id}: {step} {times} times, {audited} in the audit log")
        open_round = (state.round.number, state.round.attempt) if state.round else None
        for key, fate in self._acked.items():
            require(bool(fate) or (key.number, key.attempt) == open_round, f"{key} was acknowledged and never counted")
        newest = self.lineage[state.version]
        for who, version in self._forgotten.items():
            # A version that was deleted before its backup was restored is not known any more.
            for later in (v for v in range(version + 1, state.version + 1) if v in self.lineage):
                inside = any((c.update.client, c.update.membership) == who for c in self.lineage[later].contributions)
                require(not inside, f"{who} is in model {later}, after having been forgotten")
            plus, minus = newest.totals.get(who, (0, 0))
            require(not plus or minus < 0 or self._by_reset(state, who), f"{who} was forgotten without a minus")

    def canary(self, state: State) -> None:
        """No byte that a forgotten client sent is left: in updates, broken uploads, history or the database's log."""
        held = {**self.store.spool.files, **self.store.history}
        held |= {f"part {number}": content for number, content in self.store.spool.parts.items()}
        for update in self.store.books.values():
            who = (update.client, update.membership)
            if who in self._forgotten:
                left = searched(held, windows(f"an update of {who}", update.payload))
                require(not left, f"{who} is forgotten, and bytes of its updates are still on disk: {left}")
        gone = [m.name for m in state.members.values() if m.status is MemberStatus.FORGOTTEN]
        for name in gone:
            require(not any(f'"name":"{name}"' in row for row in self.store.log), f"the log still has {name}")

    def _by_reset(self, state: State, who: tuple[str, int]) -> bool:
        """No negated update is expected: the model went back to w_0, or the method subtracts no update."""
        ways = ("reset", "natural", "not")
        return any(
            (t.client, t.membership) == who and t.applied and t.applied.method.split(" ")[0] in ways
            for t in state.tickets.values()
        )


def _moves(path: tuple[TicketEvent, ...], start: TicketState) -> tuple[TicketEvent, ...]:
    """The entries of a history that change the state. Others only say what happened."""
    found = []
    for step in path:
        if step.state is not start:
            found.append(step)
            start = step.state
    return tuple(found)
