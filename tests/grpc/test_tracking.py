"""`--track` against a real server: event files, an MLflow store, and trackers that fail or block."""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.running import make_state, running, tiny_config

from puf_client.session.assignment import Assignment
from puf_client.session.connect import connect
from puf_client.session.settings import Offer, Running
from puf_client.transport.base import ENDED
from puf_client.transport.grpc import GrpcTransport
from puf_common.errors import Unavailable
from puf_common.tensors.manifest import MODEL
from puf_common.tensors.model_file import read_manifest, read_payload
from puf_common.v1 import federation_pb2 as pb
from puf_common.v1 import tickets_pb2 as tk
from puf_server.core.state.state import State
from puf_server.maintenance.audit_reader import show
from puf_server.runtime.server import Server
from puf_server.tracking.figures import Figures
from puf_server.tracking.trackers import Tracker, tracker_named

CLIENTS = ("anna", "bert", "cleo")
# The forgotten client's loss, which no tracker may get.
SECRET = 0.8125


@contextmanager
def client(target: str, name: str) -> Iterator[None]:
    session = connect(target, Offer(samples=10, holdout_samples=5), name=name, running=Running(wait_seconds=0.5))

    def work() -> None:
        with suppress(Unavailable):
            for task in session:
                if isinstance(task, Assignment):
                    loss = SECRET if task.unlearns else 0.5
                    moved = {n: a + np.asarray(0.001, a.dtype) for n, a in task.weights.items()}
                    task.submit(moved, train_loss=loss, samples_processed=10)
                else:
                    task.report(5, 2.0, 4.0)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        yield
    finally:
        session.close()
        thread.join(30)


def wait_for(reached: Callable[[], bool]) -> None:
    never = threading.Event()
    for _ in range(600):
        if reached():
            return
        never.wait(0.05)
    raise AssertionError("it never happened")


def trained_and_forgotten(tmp_path: Path, tracker: Callable[[str], Tracker]) -> tuple[Server, State, tk.Ticket]:
    """Two rounds with three clients; then cleo is forgotten. The server has ended."""
    plan = {"min_clients": 3, "evaluate_every": 1, "keep_models": 0, "heartbeat_seconds": 0.2}
    config = tiny_config(plan=plan, forgetting={"max_recovery_rounds": 1, "measure_seconds": 0.0})
    make_state(tmp_path / "server", config)
    with ExitStack() as stack:
        server = stack.enter_context(running(tmp_path / "server", tracker=tracker))
        target = f"127.0.0.1:{server.port}"
        clients = {name: stack.enter_context(client(target, name)) for name in CLIENTS}
        assert clients
        wait_for(lambda: server.engine.state.trained == 2 and server.engine.state.round is None)
        with GrpcTransport(target, "cleo") as transport:
            request = tk.UnlearningRequest(request_key="r1", scope=tk.SCOPE_CLIENT)
            ticket = transport.file_unlearning(pb.FileUnlearningRequest(request=request)).ticket
            for reply in transport.follow_ticket(ticket.id):
                ticket = reply.ticket
        assert ticket.state in ENDED
        assert ticket.state == tk.TICKET_STATE_COMPLETED
        state = server.engine.state
    return server, state, ticket


def events(folder: Path) -> list[Any]:
    """The events of real TensorBoard files: records of length, checksum, bytes, checksum."""
    from tensorboardX.proto.event_pb2 import Event

    found = []
    for path in sorted(folder.rglob("events.out.tfevents.*")):
        data, at = path.read_bytes(), 0
        while at < len(data):
            (length,) = struct.unpack_from("<Q", data, at)
            found.append(Event.FromString(data[at + 12 : at + 12 + length]))
            at += 12 + length + 4
    return found


def test_tensorboard_gets_the_figures_of_all_rounds_and_no_client(tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX", reason="install puf-fl[tensorboard]")
    _, state, ticket = trained_and_forgotten(tmp_path, tracker_named(f"tensorboard:{tmp_path / 'board'}"))
    found = events(tmp_path / "board" / "f-test")
    scalars = [(e.step, v.tag, v.simple_value) for e in found for v in e.summary.value if v.HasField("simple_value")]
    assert {step for step, name, _ in scalars if name == "round/seconds"} == set(state.records)
    assert [value for step, name, value in scalars if name == "train/loss" and step == 1] == [0.5]
    assert any(name == "holdout/score" and value == pytest.approx(0.8) for _, name, value in scalars)
    unlearned = ticket.applied_round
    assert (unlearned, "round/unlearns", 1.0) in scalars
    assert not [name for step, name, _ in scalars if step == unlearned and name.startswith("train/")]
    assert not [value for _, _, value in scalars if value == pytest.approx(SECRET)]
    texts = b"".join(s for e in found for v in e.summary.value for s in v.tensor.string_val)
    assert ticket.id.encode() in texts
    assert state.models[state.version].digest.encode() in texts
    written = b"".join(path.read_bytes() for path in (tmp_path / "board").rglob("events*"))
    assert not [name for name in CLIENTS if name.encode() in written]


def test_mlflow_gets_figures_tags_and_the_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow", reason="install puf-fl[mlflow]")
    # Newer versions ask for a database or a server; files are enough here.
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    store = (tmp_path / "store").as_uri()
    _, state, ticket = trained_and_forgotten(tmp_path, tracker_named(f"mlflow:{store}"))
    reader = mlflow.MlflowClient(tracking_uri=store)
    [run] = reader.search_runs([reader.get_experiment_by_name("puf f-test").experiment_id])
    assert [m.step for m in reader.get_metric_history(run.info.run_id, "round/seconds")] == sorted(state.records)
    assert run.data.tags["puf.model.digest"] == state.models[state.version].digest
    assert ticket.id in " ".join(run.data.tags)
    # The model from before the request was sent, too. The tags say that it is withdrawn.
    assert state.models[2].digest in run.data.tags["puf.withdrawn_models"]
    [path] = (tmp_path / "store").rglob(f"model-{state.version}.safetensors")
    assert read_manifest(path)[1]["digest"] == state.models[state.version].digest
    assert len(read_payload(path)) == read_manifest(path)[0].nbytes(MODEL)


class Failing:
    """A tracker that refuses everything, or that never answers."""

    def __init__(self, until: threading.Event | None = None) -> None:
        self.calls, self._until = 0, until

    def log(self, figures: Figures) -> None:
        self.calls += 1
        if self._until is not None:
            self._until.wait()
        raise OSError("the tracker is down")

    def tag(self, tags: Mapping[str, str]) -> None:
        raise AssertionError("figures come first")

    def model(self, file: Path, tags: Mapping[str, str]) -> None:
        raise AssertionError("figures come first")

    def close(self) -> None: ...


@pytest.mark.parametrize("blocks", [False, True], ids=["fails", "blocks"])
def test_a_tracker_that_fails_or_blocks_delays_no_round(
    tmp_path: Path, blocks: bool, caplog: pytest.LogCaptureFixture
) -> None:
    answer = threading.Event()
    tracker = Failing(answer if blocks else None)
    try:
        trained_and_forgotten(tmp_path, lambda federation: tracker)
    finally:
        answer.set()
    assert tracker.calls
    assert "tracker" in caplog.text


def test_the_exported_model_is_in_the_audit_log(tmp_path: Path) -> None:
    sent: list[tuple[int, dict[str, str]]] = []

    class Noting(Failing):
        def log(self, figures: Figures) -> None: ...
        def tag(self, tags: Mapping[str, str]) -> None: ...
        def model(self, file: Path, tags: Mapping[str, str]) -> None:
            sent.append((len(read_payload(file)), dict(tags)))

    _, state, ticket = trained_and_forgotten(tmp_path, lambda federation: Noting())
    # Once after training, once after the request.
    assert [tags["puf.model.version"] for _, tags in sent] == ["2", str(state.version)]
    assert ticket.id in " ".join(sent[1][1])
    exported = [entry.facts for entry in show(tmp_path / "server", 1000) if entry.event == "model.exported"]
    digests = [state.models[int(tags["puf.model.version"])].digest for _, tags in sent]
    assert len(exported) == 2
    assert all(digest in str(facts) for digest, facts in zip(digests, exported, strict=True))
