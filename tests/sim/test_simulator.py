"""Random histories of simulated federations. Mutants of the core prove that the checker finds faults."""

from __future__ import annotations

from pathlib import Path

import pytest

from puf_server.core import scheduler
from tests.sim.scenario import calm, draw, restless
from tests.sim.world import World, run

SEEDS = 300
BLOCKS = 6
KNOWN = [int(line) for line in (Path(__file__).parent / "seeds.txt").read_text().split("\n") if line[:1].isdigit()]


@pytest.mark.parametrize("block", range(BLOCKS))
def test_random_histories_keep_every_promise(block: int) -> None:
    size = SEEDS // BLOCKS
    failures = [o for seed in range(block * size, (block + 1) * size) if (o := run(draw(seed))).failure]
    assert not failures, "\n".join(f"python -m tests.sim --seed {o.seed} -v: {o.failure}" for o in failures)


def test_restored_backups_and_withdrawn_requests_keep_every_promise() -> None:
    failures = [o for seed in range(SEEDS // BLOCKS) if (o := run(restless(seed))).failure]
    assert not failures, "\n".join(f"restless {o.seed}: {o.failure}" for o in failures)


@pytest.mark.parametrize("seed", KNOWN)
def test_seeds_that_failed_once(seed: int) -> None:
    assert run(draw(seed, method="puf")).failure == ""


# Restored backups: a request that was completed again without work left its model withdrawn.
@pytest.mark.parametrize("seed", [21971])
def test_restless_seeds_that_failed_once(seed: int) -> None:
    assert run(restless(seed)).failure == ""


def test_a_seed_gives_the_same_history_twice() -> None:
    for seed in (3, 14, 159):
        first, second = run(draw(seed), verbose=True), run(draw(seed), verbose=True)
        assert first.history == second.history
        assert (first.digest, first.commits) == (second.digest, second.commits)


def test_histories_contain_all_faults_and_outcomes() -> None:
    """The generator reaches all faults and all ends of a ticket."""
    outcomes = [run(draw(seed)) for seed in range(200)]
    assert sum(o.crashes for o in outcomes) > 20
    ends = {state for o in outcomes for state, times in o.tickets.items() if times}
    # A request can wait for more retained clients than there are.
    assert ends == {"completed", "failed", "withdrawn", "pending"}
    kinds = {commit.split(":")[1] for o in outcomes for commit in o.commits}
    assert kinds == {"train", "unlearn", "recover", "reset"}


def test_crashes_of_the_server_do_not_change_a_single_model() -> None:
    strikes = {"crash_server": 0.9, "crash_before_save": 0.03, "crash_after_save": 0.05, "crash_in_fold": 0.3}
    strikes |= {"crash_in_upload": 0.1, "drop_reply": 0.05, "disk_full": 0.03}
    for seed, method in [(0, "puf"), (1, "puf"), (2, "puf"), (3, "puf"), (4, "retrain"), (5, "not"), (6, "federaser")]:
        quiet, rough = _scripted(seed, {}, method), _scripted(seed, strikes, method)
        assert quiet.server.crashes == 0
        assert rough.server.crashes > 0
        assert [c for c in quiet.checker.commits if "unlearn" in c]
        assert rough.checker.commits == quiet.checker.commits


def _scripted(seed: int, faults: dict[str, float], method: str) -> World:
    """Two clients ask to be forgotten, each while the federation is idle."""
    world = World(calm(seed, faults, method))
    some: frozenset[int] = frozenset() if method == "federaser" else frozenset({0})
    wanted = iter([(world.clients[1], frozenset[int]()), (world.clients[2], some)])

    def next_request() -> None:
        state = world.server.engine.state if world.server.up else None
        if state is not None and scheduler.phase(state) == "idle" and not any(t.open for t in state.tickets.values()):
            if (wish := next(wanted, None)) is None:
                return
            wish[0].ask(ids=wish[1])
            world.after(30.0, next_request)
        else:
            world.after(5.0, next_request)

    world.after(60.0, next_request)
    world.play()
    return world
