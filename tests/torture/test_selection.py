"""A few failpoints of `make torture`, one per phase, and clients killed in the middle of their rounds."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.torture.checks import judge
from tests.torture.harness import Federation
from tests.torture.kills import KAPPA, ONCE, TARGET, Kills, scenarios, setting

from puf_lab.local import LocalFederation
from puf_server.failpoints import POINTS

pytestmark = pytest.mark.e2e

CHOSEN = (
    "join.after_persist",
    "booking.after",
    "fold.middle",
    "commit.train.before",
    "ticket.after_persist",
    "commit.unlearn.before",
    "commit.unlearn.after",
    "commit.recover.before",
    "completion.before",
)


@pytest.mark.timeout(280)
def test_servers_and_clients_killed_at_these_points_end_with_the_weights_of_one_that_was_not(tmp_path: Path) -> None:
    plan = setting(2)
    with LocalFederation(plan, tmp_path / "local") as undisturbed:
        undisturbed.train()
        undisturbed.forget([TARGET], mode="regular", kappa=KAPPA)
        digests = tuple(m.digest for m in undisturbed.state.models.values())
    # One client dies while it trains, and the one that leaves in the very round that forgets it.
    kills = Kills(armed={name: ["kill"] for name in CHOSEN}, in_round={"train": 0, "unlearn": TARGET})
    Federation(tmp_path / "killed", kills, plan).run(240)
    told = ("client in a train round", "client in a unlearn round")
    assert kills.done == dict.fromkeys((*CHOSEN, *told), 1)
    outcome = judge(tmp_path / "killed")
    assert not outcome.wrong
    assert outcome.memberships == (1,) * plan.clients
    assert outcome.digests == digests
    assert outcome.acknowledged >= 2 * plan.clients


@pytest.mark.timeout(280)
@pytest.mark.parametrize("method", ["federaser", "mode"])
def test_a_server_killed_in_the_middle_of_a_long_method_ends_with_the_same_weights(method: str, tmp_path: Path) -> None:
    plan = setting(3, method)
    with LocalFederation(plan, tmp_path / "local") as undisturbed:
        undisturbed.train()
        undisturbed.forget([TARGET])
        digests = tuple(m.digest for m in undisturbed.state.models.values())
    # Before the commit of its first step, and between two steps.
    kills = Kills(armed={"commit.unlearn.before": ["kill"], "commit.unlearn.after": ["1*off->kill"]})
    Federation(tmp_path / "killed", kills, plan).run(240)
    assert kills.done == {"commit.unlearn.before": 1, "commit.unlearn.after": 1}
    assert judge(tmp_path / "killed").digests == digests


def test_every_failpoint_is_in_the_plan() -> None:
    planned = scenarios()
    assert planned.keys() == POINTS.keys()
    assert all(len(actions) == (1 if name in ONCE else 2) for name, actions in planned.items())
