"""Moments of the server's optimizer on disk: restarts, crashes, and requests to be forgotten."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.forgotten import EVERYONE, OnDisk
from tests.grpc.raw import update_bytes
from tests.running import TINY, make_state, tiny_config, tiny_payload

from puf_common.tensors.manifest import MODEL, UPDATE
from puf_common.v1 import tickets_pb2 as tk
from puf_server.core import server_optimizer
from puf_server.core.state.rounds import RoundKind
from puf_server.core.state.tickets import TicketState
from puf_server.maintenance.backup import backup
from puf_server.maintenance.restore import restore
from puf_server.storage.layout import history_name

PLAN: dict[str, Any] = {"rounds": 3, "min_clients": 3, "server_optimizer": "adam", "server_lr": 0.1}


def made(directory: Path, **plan: Any) -> Path:
    policy = {"blind_recovery_rounds": 1, "strength": "fixed", "mode": "special", "measure_seconds": 0.0}
    make_state(directory, tiny_config(plan={**PLAN, **plan}, forgetting=policy))
    return directory


def weights(federation: OnDisk, version: int | None = None) -> Any:
    state = federation.engine.state
    payload = federation.engine.store.models.payload(state.models[state.version if version is None else version])
    views = TINY.views(payload, MODEL)
    return np.concatenate([views[t.name].astype(np.float64).ravel() for t in TINY.tensors if t.role == "parameter"])


def moments_on_disk(directory: Path) -> list[str]:
    return sorted(p.name for p in (directory / "history").iterdir())


@pytest.mark.parametrize("optimizer", ["adam", "yogi"])
def test_rounds_step_by_the_equation(optimizer: str, tmp_path: Path) -> None:
    with OnDisk(made(tmp_path / "s", server_optimizer=optimizer)) as federation:
        federation.join(*EVERYONE)
        federation.work()
        after, plan = weights(federation), federation.engine.config.plan
    views, initial = (TINY.views(p, k) for p, k in ((update_bytes(1.0), UPDATE), (tiny_payload(), MODEL)))
    parameters = [t.name for t in TINY.tensors if t.role == "parameter"]
    one, w = (np.concatenate([v[n].astype(np.float64).ravel() for n in parameters]) for v in (views, initial))
    d = one * float(np.mean([sum(name.encode()) % 7 for name in EVERYONE]))
    m = v = None
    for _ in range(3):
        change, m, v = server_optimizer.stepped(plan, d, m, v)
        w = w + change
    assert after == pytest.approx(w, rel=1e-5)


def test_a_restart_at_any_update_gives_the_same_bits(tmp_path: Path) -> None:
    with OnDisk(made(tmp_path / "whole")) as federation:
        federation.join(*EVERYONE)
        federation.work()
        expected = federation.engine.state.models[3].digest
        kept = dict(federation.engine.state.history)
    directory = made(tmp_path / "cut")
    for number in range(3):
        for client in EVERYONE:
            with OnDisk(directory) as federation:
                federation.join(*EVERYONE)
                federation.submit(client)
        with OnDisk(directory) as federation:
            current = federation.engine.round_to_fold()
            assert current is not None
            # The process ends after the files are written and before the commit.
            federation.engine.fold(current)
        with OnDisk(directory) as federation:
            assert len(federation.engine.state.history) == (2 if number else 0)
            federation.engine.fold_ready()
    with OnDisk(directory) as federation:
        state = federation.engine.state
        assert state.models[3].digest == expected
        assert {k: r.digest for k, r in state.history.items()} == {k: r.digest for k, r in kept.items()}
        assert moments_on_disk(directory) == sorted(history_name(r) for r in state.history.values())


def test_moments_travel_in_a_backup(tmp_path: Path) -> None:
    directory = made(tmp_path / "s")
    with OnDisk(directory) as federation:
        federation.join(*EVERYONE)
        federation.work()
    backup(directory, tmp_path / "b.tar")
    restore(tmp_path / "b.tar", tmp_path / "again")
    assert moments_on_disk(tmp_path / "again") == moments_on_disk(directory)


@pytest.mark.parametrize("scope", [tk.SCOPE_CLIENT, tk.SCOPE_SAMPLES])
def test_a_request_takes_a_plain_step_and_deletes_the_moments(scope: int, tmp_path: Path) -> None:
    directory = made(tmp_path / "s")
    with OnDisk(directory) as federation:
        federation.join(*EVERYONE)
        federation.work()
        engine = federation.engine
        old = {r.digest for r in engine.state.history.values()}
        before = weights(federation)
        wanted = {} if scope == tk.SCOPE_CLIENT else {"forget_samples": 4, "retain_samples": 6}
        filed = federation.forget("cleo", scope=scope, **wanted)
        ticket = engine.state.tickets[filed]
        assert ticket.state is TicketState.COMPLETED
        assert ticket.applied is not None
        unlearned = [r for r in engine.state.records.values() if r.kind is RoundKind.UNLEARN]
        # PUF-Special with kappa 2 and one target: the upload of -2 enters as it is, whatever server_lr and the moments are.
        change = weights(federation, unlearned[0].version) - before
        assert change == pytest.approx(_sent(), rel=1e-4)
        # Recovery began with new moments, and the old files are gone.
        assert federation.events().count("optimizer.reset") == 1
        records = engine.state.history.values()
        assert {r.round for r in records} == {max(engine.state.records)}
        assert not old & {r.digest for r in records}
    assert len(moments_on_disk(directory)) == 2


def _sent() -> Any:
    views = TINY.views(update_bytes(float(sum(b"cleo") % 7)), UPDATE)
    return np.concatenate([views[t.name].astype(np.float64).ravel() for t in TINY.tensors if t.role == "parameter"])
