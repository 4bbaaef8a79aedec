"""Random histories of simulated federations. Mutants of the server and the client prove that the checks find faults."""

from __future__ import annotations

import inspect
from collections import Counter
from functools import cache
from typing import cast

import pytest

from puf_server.core import scheduler
from tests.sim import client_mutants as client
from tests.sim import core_mutants as core
from tests.sim.client_mutants import Mutation
from tests.sim.mutants import ALL, caught
from tests.sim.run import run, simulated
from tests.sim.scenario import FAULTS, calm, draw, restless
from tests.sim.world import Outcome, World

EVENTS = (
    "cancel_begin",
    "cut_stream",
    "clock_jump",
    "client_clock_jump",
    "bit_flip",
    "row_flip",
    "long_reader",
    "kill_at_write",
    "power_cut",
    "drop_reply",
)
BLOCKS = 4
SIZE = 10
# Histories in which a fault that was put into the code must show, and faults that show early. `make torture` tries all.
MUTANT_HISTORIES = 8
QUICK: tuple[Mutation, ...] = (
    core.forgotten_may_return,
    client.usage_is_not_recorded,
    client.usage_is_recorded_after_sending,
    client.exclusions_are_ignored,
    client.the_update_is_not_negated,
    client.the_scale_is_applied_twice,
    client.the_first_model_is_used_for_all,
)

# Faults after which another client takes part, or another client asks. All others can only delay a federation that waits for
# every client: they change no model.
DECIDING = {
    "leave",
    "decline",
    "stubborn",
    "latecomers",
    "withdraw",
    "everybody_asks",
    "operator_forgets",
    "lose_state",
}
DECIDING |= {"backup", "restore", "leave_after_restore", "overflow", "extend", "readmit"}
HARMLESS = {fault: rate for fault, rate in FAULTS.items() if fault not in DECIDING}
HARMLESS |= {"crash_server": 0.9, "crash_before_save": 0.03, "crash_after_save": 0.05, "crash_in_fold": 0.3}
HARMLESS |= {"crash_in_upload": 0.25, "disk_full": 0.03}
MUST_STRIKE = {
    "crash_server",
    "crash_client",
    "crash_in_upload",
    "cut_stream",
    "cancel_begin",
    "drop_reply",
    "duplicate",
}


@cache
def outcome(seed: int) -> Outcome:
    return run(restless(seed) if seed % 4 == 3 else draw(seed))


@pytest.mark.parametrize("block", range(BLOCKS))
def test_random_histories_keep_every_promise(block: int) -> None:
    failures = [o for seed in range(block * SIZE, (block + 1) * SIZE) if (o := outcome(seed)).failure]
    assert not failures, "\n".join(f"python -m tests.sim --seed {o.seed} -v: {o.failure}" for o in failures)


# 27: a client trained from a model of before a restored backup.
# 587: a restored server got a withdrawn request again; the client did not leave its samples out.
@pytest.mark.parametrize("seed", [27, 587])
def test_restless_seeds_that_failed_once(seed: int) -> None:
    assert run(restless(seed)).failure == ""


def test_a_client_with_a_new_number_of_samples_drops_models_of_before_a_restore() -> None:
    """It joined again to announce the number, and so never learned that the server knew no session."""
    assert run(draw(8228)).failure == ""


def test_a_federation_whose_clock_was_set_back_completes_requests() -> None:
    """The time in which targets may measure was counted from a date, which then lay in the future."""
    assert run(draw(3490)).failure == ""


def test_a_seed_gives_the_same_history_twice() -> None:
    for scenario in (draw(3), draw(14), restless(27)):
        first, second = run(scenario, verbose=True), run(scenario, verbose=True)
        assert first.history == second.history
        assert (first.digest, first.commits) == (second.digest, second.commits)


def test_histories_contain_faults_and_outcomes() -> None:
    outcomes = [outcome(seed) for seed in range(BLOCKS * SIZE)]
    assert sum(o.crashes for o in outcomes) > 20
    ends = {state for o in outcomes for state, times in o.tickets.items() if times}
    assert ends >= {"completed", "withdrawn"}
    kinds = {commit.split(":")[1] for o in outcomes for commit in o.commits}
    assert kinds == {"train", "unlearn", "recover", "reset"}
    struck = Counter[str]()
    for o in outcomes:
        struck.update(o.faults)
    assert not [fault for fault in EVENTS if not struck[fault]]


@pytest.mark.parametrize(("seed", "method"), [(0, "puf"), (1, "puf"), (4, "retrain"), (6, "federaser")])
def test_faults_do_not_change_a_single_model(seed: int, method: str) -> None:
    quiet, rough = _scripted(seed, {}, method), _scripted(seed, HARMLESS, method)
    assert quiet.server.crashes == 0
    assert not [fault for fault in MUST_STRIKE if not rough.struck[fault]]
    assert [c for c in quiet.checker.commits if "unlearn" in c]
    assert rough.checker.commits == quiet.checker.commits


def _scripted(seed: int, faults: dict[str, float], method: str) -> World:
    """Two clients ask to be forgotten, each while the federation is idle."""
    with simulated(calm(seed, faults, method)) as world:
        _file_two_requests(world, method)
        world.play()
    return world


def _file_two_requests(world: World, method: str) -> None:
    some: frozenset[int] = frozenset() if method == "federaser" else frozenset({0})
    wanted = [(world.clients[1], frozenset[int]()), (world.clients[2], some)]
    asked = 0

    def next_request() -> None:
        nonlocal asked
        state = world.server.engine.state if world.server.up else None
        # A request can take long to arrive: the next one is not filed before it has ended.
        ended = state is not None and len(state.tickets) == asked and not any(t.open for t in state.tickets.values())
        if state is not None and ended and scheduler.phase(state) == "idle":
            if asked == len(wanted):
                world.heals_at = world.now
                return
            client, ids = wanted[asked]
            client.ask(ids=ids)
            asked += 1
        world.after(5.0, next_request)

    world.after(60.0, next_request)


@pytest.mark.parametrize("mutate", QUICK, ids=lambda m: m.__name__)
def test_a_fault_in_the_code_is_found(mutate: Mutation) -> None:
    assert caught(mutate, MUTANT_HISTORIES) is not None


class Fitting:
    """A patch that requires that a function is replaced by one with as many parameters."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._patch = patch

    def setattr(self, target: object, name: str, value: object, raising: bool = True) -> None:
        old = inspect.getattr_static(target, name)
        if inspect.isfunction(old) and inspect.isfunction(value):
            had, has = inspect.signature(old).parameters, inspect.signature(value).parameters
            takes_all = any(p.kind is p.VAR_POSITIONAL for p in has.values())
            assert takes_all or len(had) == len(has), f"{name}{tuple(had)} is replaced by {tuple(has)}"
        self._patch.setattr(target, name, value, raising)


@pytest.mark.parametrize("mutate", ALL)
def test_a_mutant_fits_the_code_that_it_replaces(mutate: Mutation, monkeypatch: pytest.MonkeyPatch) -> None:
    mutate(cast(pytest.MonkeyPatch, Fitting(monkeypatch)))
