"""A model with frozen parameters through init, worker, Python API, request, receipt and export."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest
from tests.grpc.raw import Raw, status
from tests.grpc.test_client import CLIENTS, Clinic
from tests.running import make_state, running, tiny_config
from torch import nn
from torch.nn import functional

import puf_client as puf
from puf_client.cli.main import main
from puf_client.data import DataContext, load_data
from puf_client.options import RunOptions
from puf_client.worker.run import run_worker
from puf_common.config.exit_codes import Exit
from puf_common.errors import Mismatch
from puf_common.models.module_tensors import base_digest, manifest_of, payload_of
from puf_common.models.networks import build_any
from puf_common.receipts import signed_receipt
from puf_common.tensors.model_file import read_manifest
from puf_server.cli.init import InitSettings, init
from puf_server.core.config import Forgetting, Limits, Plan, Recipe

MODEL = "frozen_body:build"
# The digest of the federation's base model is that of BODY=1.
MODULE = """
import os
import torch
from torch import nn

class Frozen(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(64, 256).requires_grad_(False)
        self.head = nn.Linear(256, 10)

    def forward(self, x):
        return self.head(torch.relu(self.body(x.flatten(1))))

def build(options):
    model = Frozen()
    with torch.no_grad():
        model.body.weight.mul_(float(os.environ.get("BODY", "1")))
    return model
"""
HEAD_BYTES = 4 * (256 * 10 + 10)


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "frozen_body.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    sys.modules.pop("frozen_body", None)


@contextmanager
def clinic_of(tmp_path: Path) -> Iterator[Clinic]:
    settings = InitSettings(
        state=str(tmp_path / "server"),
        model=MODEL,
        recipe=Recipe(batch_size=10, seed=3),
        plan=Plan(rounds=2, min_clients=CLIENTS, heartbeat_seconds=0.2, absent_seconds=3.0),
        forgetting=Forgetting(max_recovery_rounds=1, collapse_ratio=0.0),
        limits=Limits(forget_share=1.0),
    )
    init(settings)
    with serving(tmp_path) as clinic:
        yield clinic


@contextmanager
def serving(tmp_path: Path) -> Iterator[Clinic]:
    with running(tmp_path / "server") as server:
        clinic = Clinic(server, tmp_path / "state")
        try:
            yield clinic
        finally:
            clinic.end()


def worker(clinic: Clinic, shard: int) -> RunOptions:
    return RunOptions(
        server=clinic.target,
        name=f"client-{shard}",
        state=clinic.state,
        data="digits",
        data_option={"per_client": "20"},
        shard=f"{shard}/{CLIENTS}",
        model=MODEL,
    )


def connected(clinic: Clinic, shard: int, model: nn.Module) -> puf.Session:
    data = load_data("digits", DataContext(shard=shard, shards=CLIENTS, options={"per_client": "20"}))
    return puf.connect(clinic.target, name=f"client-{shard}", state=clinic.state, data=data, model=model)


def loop(clinic: Clinic, shard: int) -> None:
    """A training loop of the Python API."""
    model = build_any(MODEL, {}, 3)
    with connected(clinic, shard, model) as session:
        for job in session:
            optimizer = job.optimizer()
            for x, y in job.batches():
                optimizer.zero_grad()
                functional.cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call]
                optimizer.step()
            job.submit()


def test_frozen_parameters_stay_at_the_clients(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with ThreadPoolExecutor(1) as pool, clinic_of(tmp_path) as clinic:
        own = build_any(MODEL, {}, 3)
        engine = clinic.server.engine
        base = engine.config.base_digest
        assert (base, engine.config.base_seed) == (base_digest(own).hex(), 3)
        assert [t.name for t in engine.manifest.tensors] == ["head.weight", "head.bias"]
        for shard in (0, 1):
            clinic.runs[shard] = clinic.start(worker(clinic, shard))
        looped: Future[None] = pool.submit(loop, clinic, 2)
        clinic.wait_for_rounds(2)
        (record, *_) = engine.state.records.values()
        assert record.nbytes_up == CLIENTS * HEAD_BYTES, "updates have the trained tensors and nothing else"
        # Adaptive strength, which also measures: the target's routine works with frozen parameters.
        assert main(["--unlearn", *clinic.flags(1), "--model", MODEL, "--yes"]) == Exit.OK
        receipt = signed_receipt.read(next(tmp_path.glob("receipt-*.json")).read_bytes())
        assert receipt.content.federation.base_digest == base
        assert receipt.content.method.strength == "auto"
        with clinic.control() as control:
            control.export(tmp_path / "out.safetensors")
        manifest, metadata, _ = read_manifest(tmp_path / "out.safetensors")
        assert (manifest, metadata["puf.base"], metadata["puf.base_seed"]) == (engine.manifest, base, "3")
    assert looped.done()
    looped.result()
    assert main(["model", "--model", MODEL, "--seed", "3", "--out", "first.safetensors"]) == Exit.OK
    assert f"base model {base}" in capsys.readouterr().out
    again = init(InitSettings(state=str(tmp_path / "again"), model=MODEL, model_file=Path("first.safetensors")))
    assert (again[0].base_digest, again[0].base_seed, again[1]) == (base, 3, manifest)


def test_another_base_model_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with clinic_of(tmp_path) as clinic:
        monkeypatch.setenv("BODY", "1.0001")
        with pytest.raises(Mismatch, match=r"another base model.*same number types.*seed 3"):
            run_worker(worker(clinic, 0))
        monkeypatch.delenv("BODY")
        with pytest.raises(Mismatch, match="another base model"):
            connected(clinic, 0, build_any(MODEL, {}, 4))
        thawed = build_any(MODEL, {}, 3).requires_grad_(True)
        monkeypatch.setattr(sys.modules["frozen_body"], "build", lambda options: thawed)
        with pytest.raises(Mismatch, match=r"has no frozen parameters.*requires_grad=False"):
            run_worker(worker(clinic, 0))
        with Raw(clinic.server.port, "client-0") as raw, pytest.raises(grpc.RpcError) as refused:
            raw.join(base_digest=bytes(32))
        assert status(refused.value) == ("FAILED_PRECONDITION", "MISMATCH")
        assert not clinic.server.engine.state.members


def test_a_federation_without_a_base_model_exchanges_every_tensor(tmp_path: Path) -> None:
    """As one of an older version does."""
    model = build_any(MODEL, {}, 1)
    manifest = manifest_of(model, whole=True)
    config = tiny_config(plan={"min_clients": 1, "rounds": 1}).model_copy(update={"model": MODEL})
    payload = payload_of(model, manifest)
    make_state(tmp_path / "server", config, manifest, payload)
    with serving(tmp_path) as clinic:
        clinic.runs[0] = clinic.start(worker(clinic, 0))
        clinic.wait_for_rounds(1)
        with Raw(clinic.server.port, "client-0") as raw:
            before, after = (manifest.views(model, "model") for model in (payload, raw.fetch(1)))
        assert (before["body.weight"] == after["body.weight"]).all()
        assert not (before["head.weight"] == after["head.weight"]).all()


def test_the_check_names_the_base_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--data", "digits", "--data-option", "per_client=20", "--model", MODEL]
    assert main(["check", *options]) == Exit.OK
    assert "16,640 frozen parameters stay here" in capsys.readouterr().out
