"""Faults in the server's code that the simulator must find. Each function puts one in."""

from __future__ import annotations

import math
from dataclasses import replace
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
from puf_server.ingest.uploads import Uploads
from puf_server.storage import rows
from tests.sim.client_mutants import Mutation


def forgotten_may_return(patch: pytest.MonkeyPatch) -> None:
    original = roster.join

    def join(state: State, presence: Presence, config: FederationConfig, name: str, *rest: Any) -> State:
        member = state.members.get(name)
        if member is not None and member.status is MemberStatus.FORGOTTEN:
            state = state.with_member(replace(member, status=MemberStatus.ACTIVE))
        return original(state, presence, config, name, *rest)

    patch.setattr(roster, "join", join)


def fold_ignores_revision(patch: pytest.MonkeyPatch) -> None:
    def commit(self: Engine, result: FoldResult, fold: int | None = None) -> None:
        def change(state: State, now: float) -> tuple[State, None]:
            current = state.round
            if current is None or current.phase is not RoundPhase.FOLDING or result.failure:
                return state, None
            return scheduler.committed(state, self.config, ModelFile(digest=result.digest, nbytes=8), now), None

        self.call(change)

    patch.setattr(Engine, "commit", commit)


def closes_without_its_targets(patch: pytest.MonkeyPatch) -> None:
    def close_if_due(state: State, presence: Presence, config: FederationConfig, now: float) -> State:
        current = state.round
        if current is None or current.phase is not RoundPhase.COLLECTING:
            return state
        return state if rounds.awaits(current, presence, config, now) else rounds.close(state, now)

    patch.setattr(jobs, "close_if_due", close_if_due)


def expires_what_is_applied(patch: pytest.MonkeyPatch) -> None:
    def expire(state: State, presence: Presence, config: FederationConfig, now: float) -> State:
        for t in state.tickets.values():
            if t.recovering and now >= t.request.filed_at + 300:
                state = state.with_ticket(replace(t, state=TicketState.FAILED))
        return state

    patch.setattr(tickets, "expire", expire)


def filing_leaves_the_update_in(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(rounds, "drop_client", lambda state, name, now: state)


def old_models_stay(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(model_versions, "delete_withdrawn", lambda state: (state, ()))


def withdrawn_models_are_served(patch: pytest.MonkeyPatch) -> None:
    def withdraw(state: State, since: int) -> State:
        return state.with_model(replace(state.models[state.version], status=ModelStatus.WITHDRAWN))

    patch.setattr(model_versions, "withdraw", withdraw)


def attempts_are_reused(patch: pytest.MonkeyPatch) -> None:
    original = rounds.open_round

    def open_round(state: State, *args: Any, **facts: Any) -> State:
        return original(replace(state, attempt=0), *args, **facts)

    patch.setattr(rounds, "open_round", open_round)


def moves_are_not_audited(patch: pytest.MonkeyPatch) -> None:
    original = tickets.move

    def move(state: State, *args: Any, **facts: Any) -> State:
        return replace(original(state, *args, **facts), notes=state.notes)

    patch.setattr(tickets, "move", move)


def acknowledged_before_it_is_kept(patch: pytest.MonkeyPatch) -> None:
    original = rounds.close

    def close(state: State, now: float) -> State:
        current = state.round
        assert current is not None
        if current.kind is RoundKind.TRAIN and len(current.received) > 1:
            received = dict(list(current.received.items())[1:])
            state = replace(state, round=replace(current, received=received))
        return original(state, now)

    patch.setattr(rounds, "close", close)


def targets_wait_without_end(patch: pytest.MonkeyPatch) -> None:
    def ready(state: State, presence: Presence, config: FederationConfig, now: float) -> list[Ticket]:
        return []

    patch.setattr(jobs, "ready", ready)


def every_client_may_fetch(patch: pytest.MonkeyPatch) -> None:
    def may_fetch(state: State, config: FederationConfig, member: Member, version: int, now: float) -> ModelVersion:
        return state.models[min(version, 1)]

    patch.setattr(model_versions, "may_fetch", may_fetch)


def models_after_a_restore_are_ready(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(model_versions, "inherited", lambda state, base: state)


def a_completion_makes_any_model_ready(patch: pytest.MonkeyPatch) -> None:
    def ready(state: State) -> State:
        return state.with_model(replace(state.models[state.version], status=ModelStatus.READY))

    patch.setattr(model_versions, "ready", ready)


def every_clock_is_believed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(clock, "TOLERANCE", math.inf)


def min_clients_falls(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(roster, "required", lambda state, config: 1)


def the_log_is_not_purged_again(patch: pytest.MonkeyPatch) -> None:
    original = LogPurge.run

    def once(self: LogPurge) -> None:
        original(self)
        self._due = False

    patch.setattr(LogPurge, "run", once)


def broken_uploads_are_never_dropped(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Uploads, "_drop", lambda self, unwanted: None)


def restored_models_are_released_by_a_request_that_takes_over(patch: pytest.MonkeyPatch) -> None:
    def unserved(self: Ticket) -> bool:
        return self.reopened and (self.waiting or self.state is TicketState.FAILED)

    patch.setattr(Ticket, "unserved", property(unserved))


def every_update_of_a_past_round_counted(patch: pytest.MonkeyPatch) -> None:
    def was_counted(state: State, name: str, header: rounds.UpdateHeader, digest: str) -> bool:
        return header.number <= state.number

    patch.setattr(rounds, "was_counted", was_counted)


def records_are_not_verified(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(rows, "verify", lambda db, tables, where: None)


MUTATIONS: tuple[Mutation, ...] = (
    forgotten_may_return,
    fold_ignores_revision,
    closes_without_its_targets,
    expires_what_is_applied,
    filing_leaves_the_update_in,
    old_models_stay,
    withdrawn_models_are_served,
    attempts_are_reused,
    moves_are_not_audited,
    acknowledged_before_it_is_kept,
    targets_wait_without_end,
    every_client_may_fetch,
    models_after_a_restore_are_ready,
    a_completion_makes_any_model_ready,
    every_clock_is_believed,
    min_clients_falls,
    the_log_is_not_purged_again,
    broken_uploads_are_never_dropped,
    restored_models_are_released_by_a_request_that_takes_over,
    every_update_of_a_past_round_counted,
    records_are_not_verified,
)
