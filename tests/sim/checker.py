"""What must hold. Written against the promises, not against the core's own helpers."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from puf_server.core.state.members import MemberStatus
from puf_server.core.state.models import ModelStatus, ModelVersion
from puf_server.core.state.rounds import RoundKind, RoundPhase
from puf_server.core.state.state import State
from puf_server.core.state.tickets import Mode, Ticket, TicketState
from puf_server.storage.layout import history_name, spool_name
from puf_server.storage.state_store import VOLATILE
from tests.sim.disk import model_name
from tests.sim.weights import Contribution, Weights

if TYPE_CHECKING:
    from tests.sim.disk import SimStore
    from tests.sim.server import Header

__all__ = ["Checker", "Violation"]

_S = TicketState
ARROWS = {
    (_S.PENDING, _S.SCHEDULED),
    (_S.SCHEDULED, _S.PENDING),
    (_S.SCHEDULED, _S.APPLIED),
    # Nothing to forget, or nobody left to retain.
    (_S.PENDING, _S.APPLIED),
    (_S.APPLIED, _S.RECOVERING),
    (_S.APPLIED, _S.COMPLETED),
    (_S.RECOVERING, _S.COMPLETED),
    (_S.PENDING, _S.FAILED),
    (_S.PENDING, _S.WITHDRAWN),
    # A failed request that was asked again, or taken back.
    (_S.FAILED, _S.WITHDRAWN),
}
PERSISTENT = [f.name for f in fields(State) if f.name not in VOLATILE]


class Violation(AssertionError):
    """A promise is broken."""


@dataclass(frozen=True)
class Acked:
    client: str
    membership: int
    number: int
    attempt: int
    part: str
    digest: str


class Checker:
    def __init__(self) -> None:
        self.store: SimStore
        # Samples that each request names, by (client, request key); the clients tell.
        self.named: dict[tuple[str, str], frozenset[int]] = {}
        self.lineage: dict[int, Weights] = {}
        self.commits: list[str] = []
        self.steps = 0
        self._last: State | None = None
        self._acked: dict[Acked, str] = {}
        self._attempts: dict[tuple[int, int], tuple[object, ...]] = {}
        self._scales: dict[tuple[int, int, str], tuple[object, ...]] = {}
        self._applied: Counter[str] = Counter()
        self._audited: Counter[tuple[str, str]] = Counter()
        # Retained updates that the unlearning round needed when it closed.
        self._others = 0
        # Memberships that are gone for good, with the version that let them go.
        self._forgotten: dict[tuple[str, int], int] = {}
        # Requests for samples that their owners took back.
        self._taken_back: set[tuple[str, str]] = set()

    # -- after every transaction ---------------------------------------------------------------------------------------

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
        """What a new process finds is what the last transaction left."""
        loaded = self.store.load()
        for name in PERSISTENT:
            _require(getattr(loaded, name) == getattr(self._last, name), f"{name} changed over a restart")

    def restored(self, state: State) -> None:
        """An older state is in place: what came after it never happened here, though somebody has receipts of it."""
        self._last = state
        # Also of models that an earlier restore had undone: this backup may be from before that one.
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
        self._forgotten = {who: version for who, version in self._forgotten.items() if who in gone}
        self._audited = Counter(
            (str(facts["ticket"]), event) for _, event, facts in self.store.audit if event.startswith("ticket.")
        )

    def files(self, state: State) -> None:
        """Every file that a record names is there, and none that no record may name."""
        current = state.round
        for key in current.received if current is not None else ():
            assert current is not None
            _require(spool_name(current, key) in self.store.spool, f"the acknowledged update {key} was lost")
        names = {model_name(m) for m in state.models.values() if m.status is not ModelStatus.DELETED}
        _require(names <= self.store.models.keys(), f"model files are lost: {names - self.store.models.keys()}")
        coming = f"v{state.newest + 1:06d}-"
        left = {name for name in self.store.models.keys() - names if not name.startswith(coming)}
        _require(not left, f"deleted models are still on disk: {left}")
        kept = {history_name(r) for r in state.history.values() if r.digest}
        _require(kept <= self.store.history.keys(), "what was kept for the method is lost")
        for r in state.history.values():
            _require((r.client, r.membership) not in self._forgotten, f"{r.key} is kept, {r.client} is forgotten")

    def _numbers(self, before: State, after: State) -> None:
        _require(after.newest - before.newest in (0, 1), "versions jump")
        _require(after.number - before.number in (0, 1), "round numbers jump")
        _require((after.newest > before.newest) == (after.number > before.number), "a round is a version")
        _require(after.version in (before.version, after.newest), "the model is neither the old one nor the new one")
        _require(before.records.items() <= after.records.items(), "records of committed rounds change")
        _require(after.evaluations >= before.evaluations and after.trained >= before.trained, "counters run backwards")
        if after.number == before.number:
            _require(after.attempt >= before.attempt, "attempts run backwards")

    def _tickets(self, before: State, after: State) -> None:
        _require(before.tickets.keys() <= after.tickets.keys(), "a ticket vanished")
        noted = Counter((str(n.facts.get("ticket")), n.event) for n in after.notes)
        for ticket_id, ticket in after.tickets.items():
            old = before.tickets.get(ticket_id)
            if old is ticket:
                continue
            path = ticket.history
            if old is None:
                _require(path[0].state is _S.PENDING, f"{ticket_id} does not start as pending")
                how = "ticket.reopened" if ticket.reopened else "ticket.filed"
                _require(noted[ticket_id, how] == 1, f"filing {ticket_id} is not in the audit log")
                new = path[1:]
                start = _S.PENDING
            else:
                _require(path[: len(old.history)] == old.history, f"the history of {ticket_id} was rewritten")
                new, start = path[len(old.history) :], old.state
                same = (old.client, old.membership, old.request) == (ticket.client, ticket.membership, ticket.request)
                _require(same, f"{ticket_id} asks for something else now")
            for step in new:
                _require((start, step.state) in ARROWS, f"{ticket_id} went from {start} to {step.state}")
                if step.state is _S.FAILED:
                    _require(bool(step.note), f"{ticket_id} failed without a reason")
                    who = (ticket.client, ticket.membership)
                    _require(who not in self._forgotten, f"{ticket_id} failed though {who} is forgotten")
                start = step.state
            _require(start is ticket.state, f"{ticket_id} is {ticket.state}, its history says {start}")
            for state, times in Counter(step.state for step in new).items():
                _require(noted[ticket_id, f"ticket.{state}"] == times, f"{ticket_id}: {state} is not in the audit log")
        scheduled = {t.id for t in after.tickets.values() if t.state is _S.SCHEDULED}
        _require(scheduled == set(after.job.tickets if after.job else ()), "scheduled is not the job")

    def _round(self, before: State, after: State) -> None:
        current, old = after.round, before.round
        if current is None or current is old:
            if current is None and old is not None and after.number == before.number:
                self._void(old.number, old.attempt)
            return
        ident = (current.number, current.attempt)
        if old is not None and (old.number, old.attempt) != ident and after.number == before.number:
            self._void(old.number, old.attempt)
        _require(current.number == after.number + 1, "a round is not the next one")
        terms = (current.base, current.kind, current.denominator, current.lr)
        _require(self._attempts.setdefault(ident, terms) == terms, f"attempt {ident} was used with another base")
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
            _require(known == fixed, f"attempt {ident} was used with another scale for {assignment.key}")
            _require(assignment.negated == (assignment.scale < 0), f"{assignment.key}: sign and side differ")
        if old is not None and ident == (old.number, old.attempt):
            out = _out(after)
            for key in old.received.keys() - current.received.keys():
                name = key.split("/")[0]
                member = after.members[name]
                gone = name in out or any(
                    t.client == name and t.id not in before.tickets for t in after.tickets.values()
                )
                _require(gone, f"the acknowledged update {key} was dropped")
                self._settle(name, member.membership, *ident, "its client asked to be forgotten")
            for key in current.received.keys() - old.received.keys():
                name, part = key.split("/")
                booked = Acked(name, after.members[name].membership, *ident, part, current.received[key].digest)
                # Sent again by one that withdrew its request: it counts, whether or not the client hears of it.
                if booked in self._acked:
                    self._acked[booked] = ""
        if current.kind is not RoundKind.UNLEARN:
            out = _out(after)
            _require(not any(s.client in out for s in current.assignments), "a client that asked has ordinary work")
            _require(not any(s.ticket or s.negated for s in current.assignments), "an ordinary round has targets")
        else:
            if current.method == "puf":
                _require(any(s.negated for s in current.assignments), "an unlearning round without a target")
                _require(current.step.last, "PUF is one round")
            _require(after.job is not None, "an unlearning round without its job")
            if after.job is not None:
                _require(set(current.tickets) == set(after.job.tickets), "round and job differ")
        if current.kind is RoundKind.UNLEARN and current.phase is RoundPhase.FOLDING:
            possible = [m for m in after.members.values() if m.trains and m.name not in _out(after)]
            self._others = min(self.store.config.forgetting.min_retained, len(possible))
        for assignment in current.assignments:
            _require(
                (assignment.client, assignment.membership) not in self._forgotten,
                f"{assignment.client} has work, but is forgotten",
            )

    def _members(self, before: State, after: State) -> None:
        for name, member in after.members.items():
            old = before.members.get(name)
            if old is None:
                _require(member.membership == 1, f"{name} starts with membership {member.membership}")
                continue
            _require(member.samples >= 0, f"{name} has {member.samples} samples")
            _require(member.generation >= old.generation, f"sessions of {name} run backwards")
            change = (old.status, member.status)
            if member.membership != old.membership:
                _require(old.status is MemberStatus.READMITTED, f"{name} came back without the operator's word")
                _require(member.membership == old.membership + 1, f"{name}: membership jumps")
            elif change[0] is not change[1]:
                allowed = {
                    (MemberStatus.ACTIVE, MemberStatus.FORGOTTEN),
                    (MemberStatus.FORGOTTEN, MemberStatus.READMITTED),
                }
                _require(change in allowed, f"{name} went from {old.status} to {member.status}")
            if member.status is MemberStatus.FORGOTTEN and old.status is MemberStatus.ACTIVE:
                mine = [t for t in after.tickets.values() if (t.client, t.membership) == (name, member.membership)]
                done = (_S.APPLIED, _S.RECOVERING, _S.COMPLETED)
                asked = any(t.whole_client and t.state in done for t in mine)
                _require(asked, f"{name} was forgotten without having asked")
                self._forgotten[name, member.membership] = after.version

    # -- a commit ------------------------------------------------------------------------------------------------------

    def _commit(self, before: State, after: State) -> None:
        current, model = before.round, after.models[after.newest]
        _require(current is not None and current.phase is RoundPhase.FOLDING, "a commit of what was not closed")
        assert current is not None
        weights = self.store.weights(model)
        self.lineage[after.newest] = weights
        self.commits.append(f"{current.number}:{current.kind}:{weights.digest[:12]}")
        _require(
            weights.base == self.lineage[self._base(before)].digest, "a model does not start from the one before it"
        )
        steady = current.kind is RoundKind.UNLEARN and not current.step.last
        _require((after.version == before.version) == steady, "the model moved before the last step, or not with it")
        got = {(c.update.client, c.update.membership, c.update.part): c for c in weights.contributions}
        want = {
            (s.client, s.membership, str(s.part)): current.received[s.key].digest
            for s in current.assignments
            if s.key in current.received
        }
        replayed = {
            (r.client, r.membership, "main"): r for k in current.step.combine.history if (r := before.history[k])
        }
        want |= {key: r.digest for key, r in replayed.items()}
        _require(len(got) == len(weights.contributions), "an update was folded twice")
        _require({k: c.update.digest for k, c in got.items()} == want, "the sum is not of what the round holds")
        self._counted(current.number, current.attempt, got)
        out = _out(before)
        for key, c in got.items():
            who = key[:2]
            _require(who not in self._forgotten, f"{who} is forgotten, and folded in round {current.number}")
            if key in replayed:
                continue
            _require(c.update.round == current.number, "an update of another round was folded")
            if not c.ticket and not (current.kind is RoundKind.UNLEARN and c.update.part == "retain"):
                _require(who[0] not in out, f"{who[0]} asked to be forgotten, and an ordinary update was folded")
            self._samples(before, c)
        applied = {
            t.id
            for t in after.tickets.values()
            if t.applied and t.applied.round == after.number and t.state is not _S.PENDING and before.tickets[t.id].waiting
            and t.applied.method != "none"
        }  # fmt: skip
        if current.kind is RoundKind.UNLEARN:
            self._unlearned(before, after, weights, applied)
        else:
            _require(not any(c.negated for c in weights.contributions), "an ordinary round negates somebody")
            _require(current.kind is RoundKind.RESET or not applied, "a ticket was applied without its round")
        if current.kind is RoundKind.RESET:
            _require(bool(applied), "the model was reset for nobody")
            _require(not weights.contributions and not weights.totals, "a reset that is not w_0")
            lost = [
                m.name
                for m in before.members.values()
                if m.status is MemberStatus.ACTIVE and m.first_round and m.name not in out
            ]
            _require(not lost, f"the reset destroyed the work of {lost}")
        if current.kind in (RoundKind.TRAIN, RoundKind.RECOVER):
            _require(bool(weights.contributions), "a round of nobody was committed")

    def _unlearned(self, before: State, after: State, weights: Weights, applied: set[str]) -> None:
        current = before.round
        assert current is not None
        if not current.step.last:
            _require(not applied, "a ticket was applied before the last step")
            return
        _require(applied == set(current.tickets), f"the round was for {current.tickets}, applied were {applied}")
        _require(bool(applied), "an unlearning round for nobody")
        if current.method != "puf":
            for t in (after.tickets[i] for i in applied):
                self._applied[t.id] += 1
                _require(self._applied[t.id] == 1, f"{t.id} was applied {self._applied[t.id]} times")
                rebuilt = current.method in ("retrain", "federaser") and t.whole_client
                _require(not rebuilt or (t.client, t.membership) not in weights.totals, f"{t.client} is in it again")
            return
        for assignment in current.assignments:
            if assignment.ticket:
                _require(
                    assignment.key in current.received, f"committed without {assignment.key} of {assignment.ticket}"
                )
        for ticket_id in applied:
            ticket = after.tickets[ticket_id]
            mine = [c for c in weights.contributions if c.ticket == ticket_id]
            negated = [c for c in mine if c.negated]
            _require(len(negated) == 1, f"{ticket_id} has {len(negated)} negated contributions")
            self._applied[ticket_id] += 1
            _require(self._applied[ticket_id] == 1, f"{ticket_id} was applied {self._applied[ticket_id]} times")
            if ticket.request.kappa is not None:
                _require(abs(float(negated[0].amount) + ticket.request.kappa) < 1e-9, f"{ticket_id}: another strength")
            parts = sorted(c.update.part for c in mine)
            wanted = {
                "client": ["main"],
                "samples": ["forget", "retain"] if ticket.request.mode is Mode.REGULAR else ["forget"],
            }
            _require(parts == wanted[ticket.request.scope], f"{ticket_id} came with parts {parts}")
        if any(after.tickets[t].request.mode is Mode.REGULAR for t in applied):
            others = sum(not c.ticket for c in weights.contributions)
            _require(others >= self._others, "a lone target's update can be computed from the models")

    def _base(self, before: State) -> int:
        """The version that the round under way must start from."""
        current, job = before.round, before.job
        assert current is not None
        if current.kind is RoundKind.RESET:
            return 0
        if current.kind is not RoundKind.UNLEARN or current.method not in ("retrain", "federaser"):
            return before.version
        assert job is not None
        return 0 if job.working is None else job.working

    def _samples(self, before: State, c: Contribution) -> None:
        """Samples that somebody asked to forget reach no later sum but with a minus."""
        for ticket in before.tickets.values():
            if (ticket.client, ticket.membership) != (c.update.client, c.update.membership):
                continue
            if ticket.whole_client or (ticket.client, ticket.request.key) in self._taken_back:
                continue
            ids = self.named[ticket.client, ticket.request.key]
            if c.update.part == "forget" and c.ticket == ticket.id:
                _require(c.update.ids == ids, f"{ticket.id}: other samples were negated")
            elif not c.negated:
                _require(not ids & c.update.ids, f"samples of {ticket.id} were trained again")

    def taken_back(self, ticket: Ticket) -> None:
        """By its owner; one that the server withdrew because another took it over still stands for its samples."""
        self._taken_back.add((ticket.client, ticket.request.key))

    # -- models --------------------------------------------------------------------------------------------------------

    def _models(self, before: State, after: State) -> None:
        _require(before.models.keys() <= after.models.keys(), "a model's record vanished")
        for version, model in after.models.items():
            old = before.models.get(version)
            if old is not None and old.status is ModelStatus.DELETED:
                _require(model.status is ModelStatus.DELETED, f"model {version} came back")
        _require(after.models[after.version].status is not ModelStatus.DELETED, "the newest model was deleted")
        for ticket in after.tickets.values():
            who = (ticket.client, ticket.membership)
            if ticket.reopened and ticket.whole_client and (ticket.waiting or ticket.state is _S.FAILED):
                known = [
                    v for v, m in after.models.items() if m.status is ModelStatus.READY and who in self.lineage[v].knows
                ]
                _require(not known, f"models {known} are ready and know {who}, who was forgotten once")
        for ticket in after.tickets.values():
            old_ticket = before.tickets.get(ticket.id)
            if ticket.state is _S.COMPLETED and (old_ticket is None or old_ticket.state is not _S.COMPLETED):
                self._completed(after, ticket)

    def _completed(self, after: State, ticket: Ticket) -> None:
        """Models that knew the client, from before it was forgotten, are gone when its ticket is complete."""
        unlearned = ticket.applied.version_unlearned if ticket.applied else None
        if unlearned is None:
            return
        who = (ticket.client, ticket.membership)
        for version, model in after.models.items():
            if version < unlearned and who in self.lineage[version].knows:
                _require(model.status is ModelStatus.DELETED, f"model {version} knew {who} and outlived {ticket.id}")

    def served(self, state: State, name: str, model: ModelVersion) -> None:
        _require(model.status is not ModelStatus.DELETED, f"deleted model {model.version} was served")
        mine = [t for t in state.tickets.values() if t.client == name]
        # While somebody waits to be forgotten again, there is nothing else to train on.
        again = any(t.reopened and (t.waiting or t.state is _S.FAILED) for t in state.tickets.values())
        if model.status is ModelStatus.WITHDRAWN and not again:
            owner = any(model.version in t.versions for t in mine)
            _require(owner, f"withdrawn model {model.version} was served to {name}")
        if state.members[name].status is not MemberStatus.ACTIVE:
            owner = any(model.version in t.versions for t in mine)
            _require(owner, f"{name} is forgotten and got model {model.version}")

    # -- acknowledged updates ------------------------------------------------------------------------------------------

    def acknowledged(self, name: str, h: Header) -> None:
        key = Acked(name, h.membership, h.number, h.attempt, str(h.part), h.update.digest)
        current = self._last.round if self._last is not None else None
        received = current.received.get(f"{name}/{h.part}") if current is not None else None
        kept = current is not None and (current.number, current.attempt) == (h.number, h.attempt)
        # The transaction that booked it may have ended its round as well.
        self._acked[key] = "" if kept and received is not None and received.digest == key.digest else "void"

    def _counted(self, number: int, attempt: int, got: dict[tuple[str, int, str], Contribution]) -> None:
        for key, fate in self._acked.items():
            if (key.number, key.attempt) == (number, attempt):
                counted = got.get((key.client, key.membership, key.part))
                if counted is not None and counted.update.digest == key.digest:
                    _require(not fate, f"{key} counts, but was {fate}")
                    self._acked[key] = "counted"
                else:
                    _require(bool(fate), f"{key} was acknowledged and is not in the sum")

    def _void(self, number: int, attempt: int) -> None:
        for key, fate in self._acked.items():
            if (key.number, key.attempt) == (number, attempt) and not fate:
                self._acked[key] = "void"

    def _settle(self, name: str, membership: int, number: int, attempt: int, fate: str) -> None:
        for key, known in self._acked.items():
            who = (key.client, key.membership, key.number, key.attempt)
            if who == (name, membership, number, attempt) and not known:
                self._acked[key] = fate

    # -- at the end ----------------------------------------------------------------------------------------------------

    def ended(self, state: State) -> None:
        loaded = self.store.load()
        for name in PERSISTENT:
            _require(getattr(loaded, name) == getattr(state, name), f"{name} in memory is not {name} on disk")
        for ticket in state.tickets.values():
            _require(not ticket.open, f"{ticket.id} is still {ticket.state}")
            how = "ticket.reopened" if ticket.reopened else "ticket.filed"
            _require(self._audited[ticket.id, how] == 1, f"{ticket.id} was filed twice")
            for step, times in Counter(s.state for s in ticket.history[1:]).items():
                audited = self._audited[ticket.id, f"ticket.{step}"]
                _require(audited == times, f"{ticket.id}: {step} {times} times, {audited} in the audit log")
        open_round = (state.round.number, state.round.attempt) if state.round else None
        for key, fate in self._acked.items():
            _require(bool(fate) or (key.number, key.attempt) == open_round, f"{key} was acknowledged and never counted")
        newest = self.lineage[state.version]
        for who, version in self._forgotten.items():
            for later in range(version + 1, state.version + 1):
                inside = any((c.update.client, c.update.membership) == who for c in self.lineage[later].contributions)
                _require(not inside, f"{who} is in model {later}, after having been forgotten")
            plus, minus = newest.totals.get(who, (0, 0))
            _require(not plus or minus < 0 or self._by_reset(state, who), f"{who} was forgotten without a minus")

    def _by_reset(self, state: State, who: tuple[str, int]) -> bool:
        """Without a minus: the model went back to w_0, or the method does not subtract anybody."""
        ways = ("reset", "natural", "not")
        return any(
            (t.client, t.membership) == who and t.applied and t.applied.method.split(" ")[0] in ways
            for t in state.tickets.values()
        )


def _out(state: State) -> set[str]:
    """Clients that asked and were not served yet; a request for everything that failed stands until it is taken back."""
    return {
        t.client
        for t in state.tickets.values()
        if t.membership == state.members[t.client].membership
        and (
            t.state in (_S.PENDING, _S.SCHEDULED)
            or (t.state is _S.FAILED and t.whole_client)
        )
    }  # fmt: skip


def _require(holds: bool, what: str) -> None:
    if not holds:
        raise Violation(what)
