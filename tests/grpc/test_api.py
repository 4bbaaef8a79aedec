"""The documented Python API against a real server: requests for samples, adaptive strength, work that is declined."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.grpc.test_client import CLIENTS, Clinic
from tests.grpc.test_methods import clinic_that
from tests.running import make_state, running, tiny_config
from torch import Tensor, nn

import puf_client
from puf_client.cli.main import main
from puf_client.data import DataContext, load_data
from puf_client.state.usage import SampleUsage, Used, digest_of
from puf_common.config.exit_codes import Exit
from puf_common.errors import InvalidUpdate
from puf_common.models.module_tensors import manifest_of, payload_of
from puf_common.models.networks import build
from puf_common.v1 import tickets_pb2 as tk

PAGE = (Path(__file__).parents[2] / "docs" / "python.md").read_text()
LOOPS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
DOCUMENTED, OWN_BATCHES = (next(code for code in LOOPS if mark in code) for mark in ("job.batches()", "job.indices"))


class Reader:
    """Runs a loop of the page as client-2, with digits as data.

    `jobs` are (part, indices) of the jobs in its order. `seen` are the positions of the samples that the model was trained on
    in the last job of each part.
    """

    def __init__(self, clinic: Clinic, code: str = DOCUMENTED) -> None:
        context = DataContext(shard=2, shards=CLIENTS, options={"per_client": "20"})
        self.data = load_data("digits", context)
        self.code = code.replace('"fed:7300"', repr(clinic.target)).replace('"clinic-7"', '"client-2"')
        self.code = self.code.replace(', tls="site/"', f", state={str(clinic.state)!r}")
        assert clinic.target in self.code
        assert "client-2" in self.code
        assert "state=" in self.code
        self.jobs: list[tuple[str, list[int]]] = []
        self.seen: dict[str, list[int]] = {}
        self.error: Exception | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        taken, model = puf_client.Job.submit, build("digits-cnn", {}, 1)
        positions = {self.data.train[i][0].numpy().tobytes(): i for i in range(self.data.samples)}
        trained: set[int] = set()

        def noted(job: puf_client.Job, **stated: Any) -> bool:
            self.jobs.append((job.part, job.indices.tolist()))
            self.seen[job.part] = sorted(trained)
            trained.clear()
            return taken(job, **stated)

        def passes(module: nn.Module, given: tuple[Tensor, ...]) -> None:
            if module.training:
                trained.update(positions[x.numpy().tobytes()] for x in given[0])

        model.register_forward_pre_hook(passes)

        names = {
            "train": self.data.train,
            "val": self.data.holdout,
            "ids": self.data.ids,
            "model": model,
            "loss": nn.functional.cross_entropy,
        }
        try:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(puf_client.Job, "submit", noted)
                exec(compile(self.code, "docs/python.md", "exec"), names)
        except Exception as error:
            self.error = error

    def start(self) -> None:
        self._thread.start()

    def join(self) -> None:
        self._thread.join(60)
        assert not self._thread.is_alive()


@contextmanager
def reading(clinic: Clinic, code: str = DOCUMENTED) -> Iterator[Reader]:
    reader = Reader(clinic, code)
    reader.start()
    clinic.wait_for(lambda: clinic.server.engine.state.number >= 2 or reader.error is not None)
    yield reader


def test_the_documented_loop_forgets_the_named_samples_and_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with clinic_that(tmp_path, members=(0, 1)) as clinic, reading(clinic) as reader:
        ids = clinic.ids(2)
        (tmp_path / "ids.txt").write_text("\n".join(ids[3:8]))
        assert main(["--unlearn", *clinic.flags(2), "--yes", "--forget", "ids.txt"]) == Exit.OK
        ticket = clinic.ticket(2)
        assert ticket.state == tk.TICKET_STATE_COMPLETED
        clinic.wait_for(lambda: reader.jobs[-1] == ("main", [i for i in range(20) if not 3 <= i < 8]))
        by_part = dict(reader.jobs)
        assert by_part["forget"] == reader.seen["forget"] == [3, 4, 5, 6, 7]
        assert reader.seen["main"] == [i for i in range(20) if not 3 <= i < 8]
        expected = digest_of(map(clinic.state_of(2).salted, ids[3:8]))
        assert (ticket.unlearned_samples, ticket.unlearned_digest.hex()) == (5, expected)
        usage, applied = SampleUsage(clinic.state_of(2)), (ticket.applied_round, ticket.applied_round)
        assert (usage.look_up(ids[3]) or Used()).unlearned == applied
        assert (usage.look_up(ids[8]) or Used()).unlearned is None
        # The loop evaluated, too: the score before has three clients.
        assert ticket.score_before.clients == CLIENTS - 1
    reader.join()
    assert reader.error is None


def test_a_loop_with_its_own_batches_forgets_the_whole_client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with clinic_that(tmp_path, members=(0, 1)) as clinic, reading(clinic, OWN_BATCHES) as reader:
        assert main(["--unlearn", *clinic.flags(2), "--yes"]) == Exit.OK
        assert clinic.ticket(2).state == tk.TICKET_STATE_COMPLETED
        reader.join()
        assert clinic.state_of(2).forgotten is not None
        context = {"name": "client-2", "data": reader.data, "model": build("digits-cnn", {}, 1)}
        with pytest.raises(puf_client.PufError, match="was forgotten"):
            puf_client.connect(clinic.target, state=clinic.state, **context)  # type: ignore[arg-type]


def test_a_loop_that_trained_on_all_samples_is_refused_and_nothing_is_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    wrong = OWN_BATCHES.replace("job.indices", "range(20)")
    with clinic_that(tmp_path, members=(0, 1), measure_seconds=0.0) as clinic, reading(clinic, wrong) as reader:
        assert reader.error is None
        (tmp_path / "ids.txt").write_text("\n".join(clinic.ids(2)[:5]))
        filed = threading.Thread(
            target=lambda: main(["--unlearn", *clinic.flags(2), "--yes", "--forget", "ids.txt"]), daemon=True
        )
        filed.start()
        reader.join()
        assert isinstance(reader.error, InvalidUpdate)
        assert "the loop states 20: 0 of the assigned are missing, " in reader.error.message
        sent = [r for r in clinic.server.engine.state.records.values() if r.kind == "unlearn"]
        assert not sent
        # The command takes the place of the loop that ended.
        filed.join(60)
        assert not filed.is_alive()


def test_work_that_needs_another_routine_is_declined_plainly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    forgetting: dict[str, Any] = {"measure_seconds": 0.0, "method": "pga", "method_options": {"epochs": "1"}}
    with clinic_that(tmp_path, members=(0, 1), **forgetting) as clinic, reading(clinic):
        assert main(["--unlearn", *clinic.flags(2), "--yes"]) != Exit.OK
        ticket = clinic.ticket(2)
        assert ticket.state == tk.TICKET_STATE_FAILED
        assert "not ascent" in ticket.history[-1].note


def test_a_loop_that_submits_nothing_is_told_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    declined: list[str] = []
    decline = puf_client.Job.decline

    def noted(job: puf_client.Job, reason: str) -> None:
        declined.append(reason)
        decline(job, reason)

    monkeypatch.setattr(puf_client.Job, "decline", noted)
    forgetful = DOCUMENTED.replace("        job.submit()\n", "")
    assert forgetful != DOCUMENTED
    with clinic_that(tmp_path, members=(0, 1)) as clinic, reading(clinic, forgetful) as reader:
        clinic.wait_for_rounds(2)
    reader.join()
    assert reader.error is None
    assert set(declined) == {"its training loop ended the job without job.submit()"}


@contextmanager
def adaptive(tmp_path: Path) -> Iterator[Clinic]:
    model = build("digits-cnn", {}, 1)
    manifest = manifest_of(model)
    config = tiny_config(
        recipe={"batch_size": 10},
        plan={"rounds": 2, "min_clients": CLIENTS, "heartbeat_seconds": 0.2, "absent_seconds": 3.0},
        forgetting={"measure_seconds": 60.0, "max_recovery_rounds": 2, "strength": "auto"},
    ).model_copy(update={"model": "digits-cnn"})
    make_state(tmp_path / "server", config, manifest, payload_of(model, manifest))
    with running(tmp_path / "server") as server:
        clinic = Clinic(server, tmp_path / "state")
        clinic.run(0, 1)
        try:
            yield clinic
        finally:
            clinic.end()


def test_doses_of_the_documented_loop_equal_those_of_a_worker_to_the_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found = []
    for own in (False, True):
        where = tmp_path / ("loop" if own else "worker")
        where.mkdir()
        with adaptive(where) as clinic:
            if own:
                Reader(clinic).start()
            else:
                clinic.run(2)
            clinic.wait_for_rounds(2)
            assert main(["--unlearn", *clinic.flags(2), "--yes"]) == Exit.OK
            ticket = clinic.ticket(2)
            state = clinic.server.engine.state
            found.append(
                ([d.kappa for d in ticket.doses], ticket.applied_round, state.models[max(state.models)].digest)
            )
    assert found[0] == found[1]
    assert found[0][0], "the method gave doses"
