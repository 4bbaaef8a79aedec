"""Checks of a commit: which updates a model contains, and how a ticket was applied."""

from __future__ import annotations

from puf_server.core.state.members import MemberStatus
from puf_server.core.state.rounds import RoundKind, RoundPhase
from puf_server.core.state.state import State
from puf_server.core.state.tickets import Mode, Ticket, TicketState
from tests.sim.facts import Facts, asked_out, require
from tests.sim.weights import Contribution, Weights

_S = TicketState


class CommitChecks(Facts):
    def _commit(self, before: State, after: State) -> None:
        current, model = before.round, after.models[after.newest]
        require(current is not None and current.phase is RoundPhase.FOLDING, "a commit of a round that was not closed")
        assert current is not None
        weights = self.store.weights(model)
        self.lineage[after.newest] = weights
        self.commits.append(f"{current.number}:{current.kind}:{weights.digest[:12]}")
        require(
            weights.base == self.lineage[self._base(before)].digest, "a model does not start from the one before it"
        )
        steady = current.kind is RoundKind.UNLEARN and not current.step.last
        require((after.version == before.version) == steady, "the model moved before the last step, or not with it")
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
        require(len(got) == len(weights.contributions), "an update was folded twice")
        require({k: c.digest for k, c in got.items()} == want, "the sum is not of what the round holds")
        self._counted(current.number, current.attempt, got)
        out = asked_out(before)
        for key, c in got.items():
            who = key[:2]
            require(who not in self._forgotten, f"{who} is forgotten, and folded in round {current.number}")
            if key in replayed:
                continue
            require(c.update.round == current.number, "an update of another round was folded")
            # A dose of zero gives the same bytes from every model.
            if not current.step.combine.history and c.amount:
                require(c.update.base == weights.base, f"{who} trained from another model than that of the round")
            if not c.ticket and not (current.kind is RoundKind.UNLEARN and c.update.part == "retain"):
                require(who[0] not in out, f"{who[0]} asked to be forgotten, and an ordinary update was folded")
            self._samples(before, c)
            stated = current.received[f"{key[0]}/{key[2]}"].samples
            require(stated == len(c.update.ids), f"{who} counts {stated} samples, and trained on {len(c.update.ids)}")
        applied = {
            t.id
            for t in after.tickets.values()
            if t.applied and t.applied.round == after.number and t.state is not _S.PENDING and before.tickets[t.id].waiting
            and t.applied.method != "none"
        }  # fmt: skip
        if current.kind is RoundKind.UNLEARN:
            self._unlearned(before, after, weights, applied)
        else:
            require(not any(c.negated for c in weights.contributions), "an ordinary round negates an update")
            require(current.kind is RoundKind.RESET or not applied, "a ticket was applied without its round")
        if current.kind is RoundKind.RESET:
            require(bool(applied), "the model was reset without a request")
            require(not weights.contributions and not weights.totals, "a reset that is not w_0")
            lost = [
                m.name
                for m in before.members.values()
                if m.status is MemberStatus.ACTIVE and m.first_round and m.name not in out
            ]
            require(not lost, f"the reset destroyed the work of {lost}")
        if current.kind in (RoundKind.TRAIN, RoundKind.RECOVER):
            require(bool(weights.contributions), "a round without updates was committed")
        if current.kind is RoundKind.TRAIN:
            plan = self.store.config.plan
            least = plan.quorum * plan.participation * plan.min_clients
            require(len(weights.contributions) >= least, "a round with fewer updates than the plan requires")

    def _doses(self, before: State, after: State, weights: Weights) -> None:
        """Every dose follows a measurement, stays within the policy, and enters once for each target."""
        current, policy = before.round, self.store.config.forgetting
        assert current is not None
        if not current.assignments:
            return
        score = before.models[current.base].score
        require(score is not None and score.classes is not None, "a dose without a measurement")
        for ticket_id in current.tickets:
            negated = [c for c in weights.contributions if c.ticket == ticket_id and c.negated]
            require(len(negated) == 1, f"{ticket_id} has {len(negated)} negated contributions")
            self._took_over(before, before.tickets[ticket_id], negated[0])
            kappa = -float(negated[0].amount)
            require(0 <= kappa <= policy.max_dose + 1e-9, f"{ticket_id}: a dose of {kappa}")
            ticket = after.tickets[ticket_id]
            if ticket.state is _S.PENDING or (after.job is not None and not after.job.doses and not ticket.applied):
                # The job was given up after the commit, and starts again.
                continue
            doses = ticket.applied.doses if ticket.applied else after.job.doses[ticket_id] if after.job else ()
            require(1 <= len(doses) <= policy.max_doses, f"{ticket_id}: {len(doses)} doses")
            require(abs(doses[-1].kappa - kappa) < 1e-9, f"{ticket_id}: another dose than stated")
        others = sum(not c.ticket for c in weights.contributions)
        require(others >= self._others, "a lone target's update can be computed from the models")

    def _unlearned(self, before: State, after: State, weights: Weights, applied: set[str]) -> None:
        current = before.round
        assert current is not None
        if current.method == "puf-auto":
            self._doses(before, after, weights)
        if not current.step.last:
            require(not applied, "a ticket was applied before the last step")
            return
        require(applied == set(current.tickets), f"the round was for {current.tickets}, applied were {applied}")
        require(bool(applied), "an unlearning round without a request")
        if current.method not in ("puf", "puf-auto") or not current.assignments:
            for t in (after.tickets[i] for i in applied):
                self._applied[t.id] += 1
                once = 2 if t.escalated else 1
                require(self._applied[t.id] <= once, f"{t.id} was applied {self._applied[t.id]} times")
                rebuilt = current.method in ("retrain", "federaser") and t.whole_client
                require(not rebuilt or (t.client, t.membership) not in weights.totals, f"{t.client} is in it again")
            return
        for assignment in current.assignments:
            if assignment.ticket:
                require(
                    assignment.key in current.received, f"committed without {assignment.key} of {assignment.ticket}"
                )
        for ticket_id in applied:
            ticket = after.tickets[ticket_id]
            mine = [c for c in weights.contributions if c.ticket == ticket_id]
            negated = [c for c in mine if c.negated]
            require(len(negated) == 1, f"{ticket_id} has {len(negated)} negated contributions")
            self._applied[ticket_id] += 1
            require(self._applied[ticket_id] == 1, f"{ticket_id} was applied {self._applied[ticket_id]} times")
            self._took_over(before, ticket, negated[0])
            if ticket.kappa is not None:
                require(abs(float(negated[0].amount) + ticket.kappa) < 1e-9, f"{ticket_id}: another strength")
            parts = sorted(c.update.part for c in mine)
            wanted = {
                "client": ["main"],
                "samples": ["forget", "retain"] if ticket.request.mode is Mode.REGULAR else ["forget"],
            }
            require(parts == wanted[ticket.request.scope], f"{ticket_id} came with parts {parts}")
        if any(after.tickets[t].request.mode is Mode.REGULAR for t in applied):
            others = sum(not c.ticket for c in weights.contributions)
            require(others >= self._others, "a lone target's update can be computed from the models")

    def _took_over(self, before: State, ticket: Ticket, negated: Contribution) -> None:
        """A request for a whole client unlearns also the samples of the requests that it took over."""
        if not ticket.whole_client:
            return
        who, base = (ticket.client, ticket.membership), self.lineage[self._base(before)]
        mine = [t for t in before.tickets.values() if (t.client, t.membership) == who and not t.whole_client]
        done = frozenset[int]().union(*(self.ids_of(t) for t in mine if t.applied))
        for other in mine:
            if other.taken_over == ticket.id and not self.withdrawn(other.client, other.request.key):
                left = (self.ids_of(other) & base.samples.get(who, frozenset())) - done - negated.update.ids
                require(not left, f"{ticket.id} took over {other.id} and does not unlearn its samples {sorted(left)}")

    def _base(self, before: State) -> int:
        """The version that the open round must start from."""
        current, job = before.round, before.job
        assert current is not None
        if current.kind is RoundKind.RESET:
            return 0
        if current.kind is not RoundKind.UNLEARN or current.method not in ("retrain", "federaser", "puf-auto"):
            return before.version
        assert job is not None
        if current.method == "puf-auto":
            return before.version if job.working is None else job.working
        return 0 if job.working is None else job.working

    def _samples(self, before: State, c: Contribution) -> None:
        """Samples to forget enter later sums only negated."""
        for ticket in before.tickets.values():
            if (ticket.client, ticket.membership) != (c.update.client, c.update.membership):
                continue
            if ticket.whole_client or self.withdrawn(ticket.client, ticket.request.key):
                continue
            ids = self.named[ticket.client, ticket.request.key]
            if c.update.part == "forget" and c.ticket == ticket.id:
                require(c.update.ids == ids, f"{ticket.id}: other samples were negated")
            elif not c.negated:
                require(not ids & c.update.ids, f"samples of {ticket.id} were trained again")
