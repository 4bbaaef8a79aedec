"""Some failpoints of `make torture`, one per phase, and clients killed in the middle of a round."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.tickets import applied
from tests.torture.checks import judge
from tests.torture.harness import Federation
from tests.torture.kills import LAST, ONCE, TARGET, Kills, scenarios, setting, thorough

from puf_lab.federations.in_process import InProcessFederation
from puf_server.failpoints import POINTS

pytestmark = pytest.mark.e2e

CHOSEN = (
    "join.after_persist",
    "accept.after_persist",
    "fold.middle",
    "commit.train.before",
    "ticket.after_persist",
    "commit.unlearn.before",
    "commit.unlearn.after",
    "commit.recover.before",
    "completion.before",
)


@pytest.mark.timeout(280)
def test_killed_servers_and_clients_end_with_the_weights_of_an_undisturbed_run(tmp_path: Path) -> None:
    plan = setting(2)
    with InProcessFederation(plan, tmp_path / "local") as undisturbed:
        undisturbed.train()
        undisturbed.forget([TARGET], mode="regular", kappa=plan.forgetting.kappa)
        digests = tuple(m.digest for m in undisturbed.state.models.values())
    # One client is killed while it trains, and the target in the round that forgets it.
    kills = Kills(armed={name: ["kill"] for name in CHOSEN}, in_round={"train": 0, "unlearn": TARGET})
    Federation(tmp_path / "killed", kills, plan).run(240)
    kinds = ("client in a train round", "client in a unlearn round")
    assert kills.done == dict.fromkeys((*CHOSEN, *kinds), 1)
    outcome = judge(tmp_path / "killed")
    assert not outcome.wrong
    assert outcome.canaries
    assert outcome.memberships == (1,) * plan.clients
    assert outcome.digests == digests
    assert outcome.acknowledged >= 2 * plan.clients


@pytest.mark.timeout(280)
@pytest.mark.parametrize("method", ["federaser", "mode"])
def test_a_server_killed_during_a_long_method_ends_with_the_same_weights(method: str, tmp_path: Path) -> None:
    plan = setting(3, method)
    with InProcessFederation(plan, tmp_path / "local") as undisturbed:
        undisturbed.train()
        undisturbed.forget([TARGET])
        digests = tuple(m.digest for m in undisturbed.state.models.values())
    # Before the commit of its first step, and between two steps.
    kills = Kills(armed={"commit.unlearn.before": ["kill"], "commit.unlearn.after": ["1*off->kill"]})
    Federation(tmp_path / "killed", kills, plan).run(240)
    assert kills.done == {"commit.unlearn.before": 1, "commit.unlearn.after": 1}
    assert judge(tmp_path / "killed").digests == digests


def test_every_failpoint_of_the_federation_is_in_the_plan() -> None:
    planned = scenarios()
    assert planned.keys() == POINTS.keys() - {"difference.made"}
    times = {name: len([a for a in actions if a != LAST]) for name, actions in planned.items()}
    assert times == {name: 1 if name in ONCE else 2 for name in planned}


def test_failpoints_of_training_are_armed_one_at_a_time() -> None:
    """If a kill elsewhere restarts the count of a failpoint, it may never be reached a second time."""
    leaving = {name for name in POINTS if name.startswith(("ticket", "evaluation", "measurement", "completion"))}
    leaving |= {f"commit.{kind}.{when}" for kind in ("unlearn", "recover") for when in ("before", "after")}
    kills, rounds = Kills(armed=scenarios()), thorough().rounds
    order = []
    while (armed := parsed(kills.text(lambda: (rounds, False)))).keys() - leaving:
        assert leaving <= armed.keys()
        mine = {name: action for name, action in armed.items() if name not in leaving}
        if len(mine) > 1:
            assert set(mine.values()) == {f"{rounds - 1}*off->kill"}
            break
        (name,) = mine
        order.append(name)
        kills.fired(name)
    assert order == [name for name in scenarios() if name not in leaving for _ in range(2)]


def test_the_last_round_is_counted_from_where_the_dead_server_stopped() -> None:
    armed = {"round.closed": [LAST], "fold.end": [LAST]}
    assert parsed(Kills(armed=armed).text(lambda: (5, False))) == {
        "round.closed": "4*off->kill",
        "fold.end": "4*off->kill",
    }
    # A round that is closed is not closed again.
    assert parsed(Kills(armed=armed).text(lambda: (5, True))) == {
        "round.closed": "3*off->kill",
        "fold.end": "4*off->kill",
    }


@pytest.mark.timeout(120)
def test_recovery_has_enough_rounds_for_its_kills(tmp_path: Path) -> None:
    plan = thorough()
    with InProcessFederation(plan, tmp_path / "local") as undisturbed:
        undisturbed.train()
        undisturbed.forget([TARGET], mode="regular", kappa=plan.forgetting.kappa)
        (ticket,) = undisturbed.state.tickets.values()
    # Two for the kills, and at least one more.
    assert 3 <= applied(ticket).recovery_rounds <= plan.forgetting.max_recovery_rounds


def parsed(text: str) -> dict[str, str]:
    return dict(entry.split("=", 1) for entry in text.split(";"))


@pytest.mark.timeout(280)
def test_kills_in_every_phase_of_adaptive_strength_end_with_the_same_weights(tmp_path: Path) -> None:
    plan = setting(2, strength="auto", max_doses=3, recovery_ratio=0.98)
    with InProcessFederation(plan, tmp_path / "local") as undisturbed:
        undisturbed.train()
        [ticket] = undisturbed.forget([TARGET], mode="regular")
        digests = tuple(m.digest for m in undisturbed.state.models.values())
        doses = applied(ticket).doses
        assert len(doses) > 1
    armed = {
        "evaluation.after_persist": ["kill"],
        "commit.unlearn.before": ["kill"],
        "commit.unlearn.after": ["kill"],
        "commit.recover.after": ["kill"],
        "measurement.after_persist": ["kill"],
        "completion.before": ["kill"],
    }
    kills = Kills(armed=dict(armed), in_round={"unlearn": TARGET})
    Federation(tmp_path / "killed", kills, plan).run(240)
    assert kills.done == dict.fromkeys((*armed, "client in a unlearn round"), 1)
    found = judge(tmp_path / "killed")
    assert not found.wrong
    assert found.digests == digests
