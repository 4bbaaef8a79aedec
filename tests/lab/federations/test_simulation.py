"""Federations in one process: without syncs they give the same bits, and their memory does not grow with the clients."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from tests.databases import sqlite

from puf_client.data.samples import Resident
from puf_lab.evaluation.evaluator import Evaluator
from puf_lab.federations import in_process
from puf_lab.federations.in_process import InProcessFederation
from puf_lab.federations.processes import _share_of_memory
from puf_lab.spec import federation as federation_spec
from puf_lab.spec.federation import DataSpec, Durability, FederationSpec
from puf_server.core.config import Forgetting, Recipe
from puf_server.storage import simulated

SETTING = FederationSpec(
    title="simulated",
    data=DataSpec(clients=4, options={"noise": 1.0, "per_client": 20}),
    rounds=3,
    recipe=Recipe(lr=0.1, batch_size=10, seed=1),
    forgetting=Forgetting(max_recovery_rounds=1, strength="fixed"),
)


def forgotten(directory: Path, durability: Durability = "none", plan: Mapping[str, str] = {}) -> list[bytes]:
    """The models after training and after a request."""
    spec = SETTING.model_copy(update={"durability": durability, "plan": plan})
    with InProcessFederation(spec, directory) as federation:
        federation.train()
        trained = bytes(federation.payload())
        federation.forget([2], mode="regular", kappa=2.0)
        return [trained, bytes(federation.payload())]


def test_a_federation_without_syncs_has_the_same_bits_and_can_be_continued(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", synced.append)
    models = forgotten(tmp_path / "none")
    assert synced == []
    assert forgotten(tmp_path / "full", "full") == models
    assert synced
    with InProcessFederation(SETTING, tmp_path / "none", without=[2]) as again:
        assert bytes(again.payload()) == models[1]
        again.extend(1)
        again.train()
        assert again.state.trained == 4


def test_rounded_updates_and_steps_have_the_same_bits_without_syncs(tmp_path: Path) -> None:
    plan = {"update_encoding": "i8", "step_encoding": "i8"}
    assert forgotten(tmp_path / "none", "none", plan) == forgotten(tmp_path / "full", "full", plan)


def test_updates_of_a_simulation_are_in_memory_until_their_round_is_over(tmp_path: Path) -> None:
    models = forgotten(tmp_path / "whole")
    directory = tmp_path / "interrupted"
    with InProcessFederation(SETTING, directory) as federation:
        for shard in (0, 1):
            federation._step(shard)
        current, stored = federation.state.round, federation.engine.store.load().round
        assert current is not None
        assert len(current.received) == 2
        assert stored is not None
        assert not stored.received
        assert not list((directory / "server" / "spool").iterdir())
    assert forgotten(directory) == models


def test_updates_that_would_take_too_much_memory_are_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    models = forgotten(tmp_path / "in-memory")
    # One update is in memory, and the second one is not.
    monkeypatch.setattr(simulated, "_MOST_BYTES", 1)
    with InProcessFederation(SETTING, tmp_path / "files") as federation:
        for shard in (0, 1):
            federation._step(shard)
        assert len(list((tmp_path / "files" / "server" / "spool").iterdir())) == 1
    assert forgotten(tmp_path / "files") == models


def test_the_database_of_a_simulation_does_not_wait_for_the_disk(tmp_path: Path) -> None:
    for durability, level in (("none", 0), ("full", 2)):
        spec = SETTING.model_copy(update={"durability": durability})
        with InProcessFederation(spec, tmp_path / durability) as federation:
            assert sqlite(federation.engine.store).execute("PRAGMA synchronous").fetchone() == (level,)


def test_clients_share_one_model_and_load_data_again_that_was_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    models = forgotten(tmp_path / "usual")
    monkeypatch.setattr(in_process, "_WORKERS_KEPT", 1)
    assert forgotten(tmp_path / "one") == models
    with InProcessFederation(SETTING, tmp_path / "few") as federation:
        federation.train()
        assert len(federation._workers) == 1
        kept = [s._recent for s in federation._sessions.values()]
        assert not any(recent._models or recent._updates for recent in kept)


@pytest.mark.parametrize(
    ("encoding", "least", "most"), [("full", 1.0, 1.0), ("difference", 0.3, 0.95), ("i8", 0.25, 0.27)]
)
def test_downloads_are_counted_as_they_would_travel(tmp_path: Path, encoding: str, least: float, most: float) -> None:
    spec = SETTING.model_copy(update={"plan": {"step_encoding": encoding}})
    with InProcessFederation(spec, tmp_path / "federation") as federation:
        federation.train()
        whole = spec.clients * len(federation.payload())
        first, *later = (record.nbytes_down / whole for record in federation.state.records.values())
    assert first == 1.0
    assert all(least <= share <= most for share in later)


def test_data_without_room_on_the_device_gives_the_same_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All clients' data together have a bound. Data beyond it are fetched batch by batch."""
    usual = forgotten(tmp_path / "usual")
    outputs = Evaluator(SETTING).outputs(usual[1], [2])
    monkeypatch.setattr(federation_spec, "DATA_BYTES", 1)
    assert forgotten(tmp_path / "little") == usual
    with InProcessFederation(SETTING, tmp_path / "little", without=[2]) as federation:
        trainer = federation._worker(0).trainer
        assert not isinstance(trainer._plain, Resident)
    little = Evaluator(SETTING).outputs(usual[1], [2])
    assert np.array_equal(little.forget.losses, outputs.forget.losses)
    assert np.array_equal(little.test.confidences, outputs.test.confidences)


def test_processes_on_a_gpu_share_its_memory() -> None:
    """A worker and a request for every client, and the process that measures."""
    [flag, share] = _share_of_memory(SETTING.model_copy(update={"device": "cuda"}))
    assert flag == "--memory-fraction"
    assert (2 * SETTING.shards + 1) * float(share) == pytest.approx(1.0, abs=1e-3)
    [_, third] = _share_of_memory(SETTING.model_copy(update={"device": "cuda", "sharing": 3}))
    assert 3 * (2 * SETTING.shards + 1) * float(third) == pytest.approx(1.0, abs=1e-3)
    assert _share_of_memory(SETTING) == []
