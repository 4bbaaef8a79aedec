"""PUF with adaptive strength: doses that are chosen by their measured effect.

Every dose is a round of PUF-Regular from the model of the last one:

    w_(t+1) = w_t + sum over retained (n_i / n) Delta_i - kappa_t * Delta_u(w_t)

Before a dose, clients measure w_t on their hold-outs. The target compares its data with them: g_t is the gap and se_t its
standard error (see `puf_common.receipts.gap`), H_t is the mean p(y|x) over the hold-outs. The dose has to lower p(y|x) on
the target's data by

    a_t = g_t - delta * max(H_0 - H_t, 0) + over_t    with over_0 = MARGIN * g_0, over_t = min(MARGIN * g_0, se_t),

in one round by at most LARGEST_FALL and half of its present value. The middle term keeps doses from following general
damage. Where much of the data leaves, or much of the target's classes, a retrained model is worse, too: delta is 1 up to
the share LITTLE and 0 from MUCH. The target finds the smallest kappa that does it, on its own data. A dose with
a_t <= LARGEST_FALL is a hold: it keeps the retained clients from bringing the data back. A later dose is at most
LARGEST_LATER, and 0 where g_t < -se_t. Doses end after HOLDS holds, or after the policy's number of rounds. The server
plans a dose only after a measurement, and refuses a kappa outside the policy. Retained clients train as in any round.

The overshoot makes the doses go a little too far. Recovery brings the gap back from below, to where a model without the
data has it. The target watches: recovery ends only when the gap has stopped rising (see `unlearning.watch`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from puf_common.receipts.gap import FEWEST, ClassTable
from puf_server.core.config import FederationConfig
from puf_server.core.methods.base import Requirements, Step, View
from puf_server.core.methods.puf import Puf, planned_step
from puf_server.core.methods.view import Target
from puf_server.core.state.members import MemberStatus
from puf_server.core.state.rounds import Assignment, Combine, CombineRule, Round
from puf_server.core.state.tickets import Dose, Ticket

# A smaller dose does not keep the data away. It follows the client's share of the data, at most up to this.
SMALLEST_DOSE = 0.125
SHARES = 1.25
GROWTH = 1.25
MARGIN = 0.15
LARGEST_FALL = 0.2
# Shares of the data that leaves.
LITTLE, MUCH = 1 / 10, 1 / 3
HOLDS = 3
# A first dose of this size shows that the model fits the target's data almost perfectly. Its score will drop for a while.
LARGE_DOSE = 2.0
# Later doses correct. Single samples share their client with retained samples, so that large doses harm both.
LARGEST_LATER = 2.0
# Fewer samples have no mean that could be measured.
FEWEST_FORGOTTEN = 10
MIN_RECOVERY_ROUNDS = 2


class PufAuto(Puf):
    name = "puf-auto"
    summary = "several rounds of PUF-Regular whose strength follows from the measured effect"
    requires = Requirements(single_round=False, target_takes_part=True, retained_take_part=True)

    def label(self, ticket: Ticket) -> str:
        return self.name

    def choose(self, waiting: Sequence[Ticket], view: View) -> list[Ticket]:
        """As many tickets as may have the smallest dose within the limit on the sum of kappa."""
        return list(waiting[: max(1, int(view.config.forgetting.max_total_kappa / SMALLEST_DOSE))])

    def unable(self, ticket: Ticket, view: View) -> str | None:
        """Why strength cannot adapt for this ticket; None if it can."""
        if not view.state.members[ticket.client].adapts:
            return "the client's software or training loop cannot choose doses"
        samples = Target(ticket, view.state.members[ticket.client]).forget_samples
        if samples < FEWEST_FORGOTTEN:
            return f"fewer than {FEWEST_FORGOTTEN} samples are too few to measure"
        able = [
            m
            for m in view.state.members.values()
            if m.status is MemberStatus.ACTIVE and m.holdout and m.name not in view.state.kept_out()
        ]
        if sum(m.holdout for m in able) < FEWEST:
            return f"the other clients hold out fewer than {FEWEST} samples to compare with"
        if view.job is not None and not self.measured(view):
            return "no client measured the model before unlearning"
        return None

    def evaluates(self, view: View) -> bool:
        """Whether the model has to be measured before the next dose."""
        return _table(view, view.model) is None and view.started.evaluated != view.model

    def measured(self, view: View) -> bool:
        return _table(view, view.model) is not None

    def step(self, view: View) -> Step:
        if not self.measured(view):
            # No dose without a measurement: the doses so far are what the model gets.
            return Step(base=view.model, combine=Combine(rule=CombineRule.KEEP), last=True)
        table = _table(view, view.model)
        step = planned_step(view, self.options)
        return replace(
            step,
            base=view.model,
            assignments=tuple(
                self._dose(view, a, table, step.denominator or 1) if a.negated else a for a in step.assignments
            ),
            lr=self.rate(view.config),
            last=False,
        )

    def _dose(self, view: View, assignment: Assignment, table: ClassTable | None, n: int) -> Assignment:
        assert table is not None
        [target] = [t for t in view.targets if t.ticket.id == assignment.ticket]
        least = min(SMALLEST_DOSE, SHARES * target.all_samples / n)
        first = view.started.doses.get(assignment.ticket, ())[:1]
        options = {
            "min_kappa": least,
            "max_kappa": max(least, self._largest(view, target.ticket, later=bool(first))),
            "growth": GROWTH,
            "margin": MARGIN,
            "largest_fall": LARGEST_FALL,
            "damage": _damage(view, view.model),
            "share": sum(t.forget_samples for t in view.targets) / n,
            "part": target.forget_samples / target.all_samples,
            "little": LITTLE,
            "much": MUCH,
            **({"first_gap": first[0].gap.value, "may_skip": 1.0} if first else {}),
        }
        return replace(assignment, routine="dose", options=options, unseen=table)

    def _largest(self, view: View, ticket: Ticket, *, later: bool) -> float:
        policy = view.config.forgetting
        most = min(policy.max_dose, policy.max_total_kappa / len(view.started.tickets))
        return min(most, LARGEST_LATER) if later or not ticket.whole_client else most

    def settle(self, view: View, current: Round) -> Step:
        """The step with the decision that the targets' reports allow: whether these were the last doses."""
        over = all(_over(view, doses) for doses in doses_with(view, current).values())
        return replace(current.step, last=current.step.last or over)

    def rate(self, config: FederationConfig) -> float | None:
        """The initial rate: late in training the decayed rate gives updates too small to negate."""
        return config.recipe.lr

    @property
    def recovery_bounds(self) -> tuple[int, int | None]:
        return MIN_RECOVERY_ROUNDS, None


def doses_with(view: View, current: Round) -> dict[str, tuple[Dose, ...]]:
    """All doses of the job by ticket, with those of this round."""
    found = dict(view.started.doses)
    score = view.state.models[current.base].score
    for a in current.assignments:
        update = current.received.get(a.key)
        if update is None or update.dose is None:
            continue
        before = found.get(a.ticket, ())
        dose = Dose(
            round=current.number,
            kappa=update.dose.kappa,
            gap=update.dose.gap,
            hold=update.dose.hold,
            score=score.score if score else None,
        )
        found[a.ticket] = (*before, dose)
    return found


def _over(view: View, doses: tuple[Dose, ...]) -> bool:
    policy = view.config.forgetting
    return len(doses) >= policy.max_doses or sum(d.hold for d in doses) >= HOLDS or _collapsed(view)


def _collapsed(view: View) -> bool:
    """Whether the doses so far harmed the model so much that recovery must begin."""
    before, now = view.state.models[view.state.version].score, view.state.models[view.model].score
    ratio = view.config.forgetting.collapse_ratio
    return before is not None and now is not None and now.score < ratio * before.score


def _table(view: View, version: int) -> ClassTable | None:
    score = view.state.models[version].score
    table = score.classes if score else None
    return table if table is not None and table.samples >= FEWEST else None


def _damage(view: View, version: int) -> float:
    """How much worse the hold-outs are known than before the first dose."""
    before, now = _table(view, view.state.version), _table(view, version)
    return max(0.0, before.mean - now.mean) if before and now else 0.0
