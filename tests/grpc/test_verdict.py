"""The verdict on a request with real clients: the same words in terminal, receipt, page, ticket and metrics."""

from __future__ import annotations

import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.running import make_state, running, tiny_config
from torch import nn

from puf_client.cli.main import main
from puf_client.data import DataContext, load_data
from puf_client.options import RunOptions
from puf_client.routines.train import prepare
from puf_client.worker.run import run_worker
from puf_common.config.exit_codes import Exit
from puf_common.models.module_tensors import manifest_of, payload_of
from puf_common.models.networks import build
from puf_common.receipts import signed_receipt
from puf_common.receipts.content import MeasuredByClient
from puf_common.receipts.evidence import Verdict
from puf_server.cli.main import main as operator_main
from puf_server.cli.operator_client import OperatorClient
from puf_server.runtime.server import Server

TARGET = 2
# Shards of a third of the data have 133 hold-out samples, shards of a tenth have 40.
OPTIONS = {"noise": "1.0", "per_client": "60", "holdout": "0.4"}


@contextmanager
def federation(tmp_path: Path, model: nn.Module, shards: int, **changes: Any) -> Iterator[Server]:
    """A federation of three clients that has trained for its planned rounds."""
    manifest = manifest_of(model)
    plan = {"min_clients": 3, "heartbeat_seconds": 0.2, "absent_seconds": 30.0, "rounds": 1} | changes.pop("plan", {})
    # Completion waits for the measurements of the target.
    forgetting = {"max_recovery_rounds": 1, "measure_seconds": 60.0} | changes.pop("forgetting", {})
    config = tiny_config(plan=plan, forgetting=forgetting, **changes).model_copy(update={"model": "digits-cnn"})
    make_state(tmp_path / "server", config, manifest, payload_of(model, manifest))
    with running(tmp_path / "server", metrics="127.0.0.1:0") as server, ThreadPoolExecutor(3) as pool:
        workers = [
            pool.submit(
                run_worker,
                RunOptions(
                    server=f"127.0.0.1:{server.port}",
                    name=f"client-{i}",
                    state=tmp_path / "state",
                    data="digits",
                    data_option=OPTIONS,
                    shard=f"{i}/{shards}",
                ),
            )
            for i in range(3)
        ]
        try:
            yield server
        finally:
            with OperatorClient(f"127.0.0.1:{server.operator_port}") as control:
                control.stop()
        assert [worker.result(60) for worker in workers] == [Exit.OK, Exit.OK, Exit.FORGOTTEN]


def asked(server: Server, tmp_path: Path, shards: int, capsys: pytest.CaptureFixture[str]) -> MeasuredByClient:
    """Forgets the target after training. Returns what it measured; the verdict is the same wherever it is shown."""
    assert operator_main(["status", "--until-idle", "--operator", f"127.0.0.1:{server.operator_port}"]) == Exit.OK
    data = ["--data", "digits", *(word for k, v in OPTIONS.items() for word in ("--data-option", f"{k}={v}"))]
    where = ["--server", f"127.0.0.1:{server.port}", "--name", f"client-{TARGET}", "--state", str(tmp_path / "state")]
    out = ["--receipt-dir", str(tmp_path / "receipts")]
    (tmp_path / "receipts").mkdir()
    assert main(["--unlearn", "--yes", *where, *data, "--shard", f"{TARGET}/{shards}", *out]) == Exit.OK
    printed = " ".join(capsys.readouterr().out.split())
    (path,) = (tmp_path / "receipts").glob("*.json")
    mine = signed_receipt.read(path.read_bytes()).content.measured_by_client
    verdict, comparison = mine.verdict, mine.comparison
    assert verdict is not None
    assert comparison is not None
    assert f"Verdict: {verdict}. {comparison.reason}" in printed
    assert comparison.figures in printed
    page = path.with_suffix(".html").read_text()
    assert f"<b>{verdict.capitalize()}.</b> {comparison.reason}" in page
    with OperatorClient(f"127.0.0.1:{server.operator_port}") as control:
        assert control.tickets()[0].verdict == verdict
    with urllib.request.urlopen(f"http://127.0.0.1:{server.metrics_port}/metrics", timeout=10) as reply:
        metrics = reply.read().decode()
    for each in Verdict:
        assert f'puf_tickets_judged_total{{verdict="{each}"}} {float(each == verdict)}' in metrics
    assert ("var(--good)" in page.split("</style>")[1]) == (verdict == Verdict.FORGOTTEN)
    return mine


def memorised(shards: int) -> nn.Module:
    """A model that knows the target's training data by heart, and no other data."""
    data = load_data("digits", DataContext(shard=TARGET, shards=shards, options=OPTIONS))
    samples = [data.train_plain[i] for i in range(data.samples)]
    x, y = (torch.stack([torch.as_tensor(sample[i]) for sample in samples]) for i in (0, 1))
    prepare(torch.device("cpu"), 1)
    model = build("digits-cnn", {}, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(60):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return model


def test_a_request_that_changed_nothing_is_still_known(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The model knows the target. With a vanishing learning rate neither unlearning nor recovery changes it."""
    with federation(tmp_path, memorised(10), 10, recipe={"lr": 1e-9, "batch_size": 10}) as server:
        mine = asked(server, tmp_path, 10, capsys)
    assert mine.verdict == Verdict.STILL_KNOWN
    assert mine.comparison is not None
    assert mine.comparison.before == pytest.approx(mine.comparison.after, abs=1e-6)
    # The own 40 hold-out samples are too few, so those of the two other clients serve.
    assert mine.comparison.source == "the other clients' hold-outs, matched by label"
    assert mine.recovered is not None
    assert mine.recovered.own is not None
    assert mine.recovered.own.unseen_samples == 40


def test_a_client_that_was_never_known_is_not_forgotten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = build("digits-cnn", {}, 1)
    with federation(tmp_path, model, 3, recipe={"lr": 1e-9, "batch_size": 10}) as server:
        mine = asked(server, tmp_path, 3, capsys)
    assert mine.verdict == Verdict.NOTHING_CHANGED
    assert mine.comparison is not None
    assert mine.comparison.source == "the client's own hold-out"
    assert mine.comparison.unseen_samples == 133


def test_a_client_is_forgotten_by_training_anew_without_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = {"lr": 0.1, "batch_size": 10, "epochs": 4}
    model = build("digits-cnn", {}, 1)
    with federation(tmp_path, model, 3, recipe=recipe, plan={"rounds": 8}, forgetting={"method": "retrain"}) as server:
        mine = asked(server, tmp_path, 3, capsys)
    assert mine.verdict == Verdict.FORGOTTEN
