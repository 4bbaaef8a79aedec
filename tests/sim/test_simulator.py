"""Random histories of simulated federations. Mutants of the core prove that the checker finds faults."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from puf_server.aggregation.folder import FoldResult
from puf_server.core import roster, rounds, scheduler, tickets
from puf_server.core.commits import ModelFile
from puf_server.core.config import FederationConfig
from puf_server.core.state.members import Member, MemberStatus
from puf_server.core.state.models import ModelStatus, ModelVersion
from puf_server.core.state.presence import Presence
from puf_server.core.state.rounds import RoundKind, RoundPhase
from puf_server.core.state.state import State
from puf_server.core.state.tickets import Ticket, TicketState
from puf_server.core.unlearning import jobs, model_versions
from puf_server.engine import clock
from puf_server.engine.engine import Engine
from puf_server.engine.log_purge import LogPurge
from tests.sim.client import Client
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


# -- mutants of the core, which the checker must find -------------------------------------------------------------------


def _forgotten_may_return(patch: pytest.MonkeyPatch) -> None:
    original = roster.join

    def join(state: State, presence: Presence, config: FederationConfig, name: str, *rest: Any) -> State:
        member = state.members.get(name)
        if member is not None and member.status is MemberStatus.FORGOTTEN:
            state = state.with_member(replace(member, status=MemberStatus.ACTIVE))
        return original(state, presence, config, name, *rest)

    patch.setattr(roster, "join", join)


def _fold_ignores_revision(patch: pytest.MonkeyPatch) -> None:
    def commit(self: Engine, result: FoldResult) -> None:
        def change(state: State, now: float) -> tuple[State, None]:
            current = state.round
            if current is None or current.phase is not RoundPhase.FOLDING or result.failure:
                return state, None
            return scheduler.committed(state, self.config, ModelFile(digest=result.digest, nbytes=8), now), None

        self.call(change)

    patch.setattr(Engine, "commit", commit)


def _closes_without_its_targets(patch: pytest.MonkeyPatch) -> None:
    def close_if_due(state: State, presence: Presence, config: FederationConfig, now: float) -> State:
        current = state.round
        if current is None or current.phase is not RoundPhase.COLLECTING:
            return state
        return state if rounds.hopeful(current, presence, config, now) else rounds.close(state, now)

    patch.setattr(jobs, "close_if_due", close_if_due)


def _expires_what_is_applied(patch: pytest.MonkeyPatch) -> None:
    def expire(state: State, presence: Presence, config: FederationConfig, now: float) -> State:
        for t in state.tickets.values():
            if t.recovering and now >= t.request.filed_at + 300:
                state = state.with_ticket(replace(t, state=TicketState.FAILED))
        return state

    patch.setattr(tickets, "expire", expire)


def _filing_leaves_the_update_in(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(rounds, "drop_client", lambda state, name, now: state)


def _old_models_stay(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(model_versions, "delete_withdrawn", lambda state: (state, ()))


def _withdrawn_models_are_served(patch: pytest.MonkeyPatch) -> None:
    def withdraw(state: State, since: int) -> State:
        return state.with_model(replace(state.models[state.version], status=ModelStatus.WITHDRAWN))

    patch.setattr(model_versions, "withdraw", withdraw)


def _attempts_are_reused(patch: pytest.MonkeyPatch) -> None:
    original = rounds.open_round

    def open_round(state: State, *args: Any, **facts: Any) -> State:
        return original(replace(state, attempt=0), *args, **facts)

    patch.setattr(rounds, "open_round", open_round)


def _moves_are_not_audited(patch: pytest.MonkeyPatch) -> None:
    original = tickets.move

    def move(state: State, *args: Any, **facts: Any) -> State:
        return replace(original(state, *args, **facts), notes=state.notes)

    patch.setattr(tickets, "move", move)


def _acknowledged_before_it_is_kept(patch: pytest.MonkeyPatch) -> None:
    original = rounds.close

    def close(state: State, now: float) -> State:
        current = state.round
        assert current is not None
        if current.kind is RoundKind.TRAIN and len(current.received) > 1:
            received = dict(list(current.received.items())[1:])
            state = replace(state, round=replace(current, received=received))
        return original(state, now)

    patch.setattr(rounds, "close", close)


def _every_update_of_a_past_round_counted(patch: pytest.MonkeyPatch) -> None:
    def was_counted(state: State, name: str, header: rounds.UpdateHeader, digest: str) -> bool:
        return header.number <= state.number

    patch.setattr(rounds, "was_counted", was_counted)


def _targets_wait_without_end(patch: pytest.MonkeyPatch) -> None:
    def ready(state: State, config: FederationConfig, now: float) -> list[Ticket]:
        return []

    patch.setattr(jobs, "ready", ready)


def _every_client_may_fetch(patch: pytest.MonkeyPatch) -> None:
    def may_fetch(state: State, config: FederationConfig, member: Member, version: int, now: float) -> ModelVersion:
        return state.models[min(version, 1)]

    patch.setattr(model_versions, "may_fetch", may_fetch)


def _models_after_a_restore_are_ready(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(model_versions, "inherited", lambda state, base: state)


def _a_completion_makes_any_model_ready(patch: pytest.MonkeyPatch) -> None:
    def ready(state: State) -> State:
        return state.with_model(replace(state.models[state.version], status=ModelStatus.READY))

    patch.setattr(model_versions, "ready", ready)


def _exclusions_are_not_checked(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Client, "_if_exclusions_known", lambda self, process, then: then())


def _every_clock_is_believed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(clock, "TOLERANCE", math.inf)


def _min_clients_falls(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(roster, "required", lambda state, config: 1)


def _the_log_is_not_purged_again(patch: pytest.MonkeyPatch) -> None:
    original = LogPurge.run

    def once(self: LogPurge) -> None:
        original(self)
        self._due = False

    patch.setattr(LogPurge, "run", once)


MUTATIONS = [
    _every_clock_is_believed,
    _min_clients_falls,
    _the_log_is_not_purged_again,
    _models_after_a_restore_are_ready,
    _a_completion_makes_any_model_ready,
    _exclusions_are_not_checked,
    _forgotten_may_return,
    _fold_ignores_revision,
    _closes_without_its_targets,
    _expires_what_is_applied,
    _filing_leaves_the_update_in,
    _old_models_stay,
    _withdrawn_models_are_served,
    _attempts_are_reused,
    _moves_are_not_audited,
    _acknowledged_before_it_is_kept,
    _every_update_of_a_past_round_counted,
    _targets_wait_without_end,
    _every_client_may_fetch,
]


@pytest.mark.parametrize("mutate", MUTATIONS, ids=lambda m: m.__name__.strip("_"))
def test_the_checker_catches_a_broken_core(
    mutate: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    mutate(monkeypatch)
    caught = next((o for seed in range(SEEDS) for kind in (draw, restless) if (o := run(kind(seed))).failure), None)
    assert caught is not None
