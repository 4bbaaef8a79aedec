"""Sessions against a real server over real sockets, also across restarts and lost answers."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import pytest
from tests.running import Federation

from puf_client.session.assignment import Assignment, EvaluationRequest, Work
from puf_client.session.connect import connect
from puf_client.session.session import Session
from puf_client.session.settings import Joining, Offer, Running
from puf_client.state.directory import Exclusion, StateDirectory
from puf_client.transport.base import ENDED
from puf_client.transport.grpc import GrpcTransport
from puf_client.transport.retry import RetryPolicy
from puf_common.errors import (
    Forgotten,
    Mismatch,
    NotNow,
    Superseded,
    Unavailable,
    WorkerAlive,
)
from puf_common.tensors.chunks import Payload
from puf_common.tensors.manifest import MODEL, UPDATE, Manifest, TensorSpec
from puf_common.v1 import federation_pb2 as pb
from puf_common.v1 import tickets_pb2 as tk
from puf_server.core.config import FederationConfig, Forgetting, Plan, Recipe

MANIFEST = Manifest((TensorSpec("w", "f32", (1000, 700)), TensorSpec("seen", "i64", (), "buffer")))


@pytest.fixture
def federation(tmp_path: Path) -> Iterator[Federation]:
    plan = Plan(rounds=2, min_clients=2, heartbeat_seconds=0.1, absent_seconds=30, evaluate_every=0)
    forgetting = Forgetting(max_recovery_rounds=0, blind_recovery_rounds=0)
    config = FederationConfig(id="f-1", model="none", recipe=Recipe(), plan=plan, forgetting=forgetting)
    running = Federation(tmp_path / "state", config, MANIFEST)
    yield running
    running.stop()


def join(federation: Federation, name: str, samples: int = 10, *, only_if_no_worker: bool = False) -> Session:
    return connect(
        federation.target,
        Offer(samples=samples, manifest=MANIFEST),
        name=name,
        joining=Joining(only_if_no_worker=only_if_no_worker),
        running=Running(wait_seconds=1.0),
    )


def train(work: Work, step: float) -> bool:
    """Every weight moves by `step`, so that the result can be computed by hand."""
    assert isinstance(work, Assignment)
    weights = {"w": work.weights["w"] + np.float32(step), "seen": np.int64(work.round)}
    return work.submit(weights, indices=work.indices)


def next_work(session: Session) -> Work:
    return next(iter(session))


def next_round(session: Session) -> int:
    return session.transport.describe().position.round + 1


@contextmanager
def busy(session: Session, step: float = 0.0) -> Iterator[None]:
    """A client that does all its work in a thread."""

    def work() -> None:
        with suppress(Unavailable):
            for task in session:
                train(task, step)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    yield
    session.close()
    thread.join(20)


def eventually(condition: Callable[[], bool]) -> None:
    for _ in range(400):
        if condition():
            return
        time.sleep(0.025)
    raise AssertionError("never came true")


def test_two_clients_train_and_the_model_is_their_weighted_mean(federation: Federation) -> None:
    with join(federation, "a", 30) as a, join(federation, "b", 10) as b:
        for number in (1, 2):
            for session, step in ((a, 1.0), (b, 5.0)):
                work = next_work(session)
                assert isinstance(work, Assignment)
                assert (work.round, work.part, work.base_version) == (number, "main", number - 1)
                assert train(work, step)
        eventually(lambda: a.step() is None and a.position.model_version == 2)
        assert federation.weights(2) == 4.0
        assert isinstance(a.transport, GrpcTransport)
        assert a.transport.bytes_sent == 2 * MANIFEST.nbytes(UPDATE)
        assert a.transport.bytes_received == 2 * MANIFEST.nbytes(MODEL)


def test_a_server_that_restarts_during_training_gets_the_update_all_the_same(federation: Federation) -> None:
    with join(federation, "a") as a, join(federation, "b") as b:
        works = [next_work(a), next_work(b)]
        federation.stop()
        with ThreadPoolExecutor(2) as pool:
            sent = [pool.submit(train, work, 1.0) for work in works]
            federation.start()
            assert [s.result(60) for s in sent] == [True, True]
        assert isinstance(next_work(a), Assignment)
        assert federation.weights(1) == 1.0


def test_a_session_waits_out_a_server_that_is_gone(federation: Federation) -> None:
    with join(federation, "a") as a, join(federation, "b"):
        federation.stop()
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(next_work, a)
            with pytest.raises(TimeoutError):
                waiting.result(0.5)
            federation.start()
            assert isinstance(waiting.result(60), Assignment)


class LosesAnswers(GrpcTransport):
    """Loses the first answers of the server to an update."""

    lost = 1

    def submit_update(self, header: pb.UpdateHeader, payload: Payload) -> pb.SubmitUpdateReply:
        if self.lost:
            self.lost -= 1
            raise NotNow("not today")
        return super().submit_update(header, payload)


def test_work_that_comes_again_is_answered_without_training_again(federation: Federation) -> None:
    with LosesAnswers(federation.target, "a") as transport, join(federation, "b") as b:
        with connect(transport, Offer(samples=10), running=Running(heartbeats=False)) as a:
            assert not train(next_work(a), 1.0)
            assert a.step(1.0) is None
            train(next_work(b), 3.0)
            work = next_work(a)
            assert isinstance(work, Assignment)
            assert work.round == 2
        assert federation.weights(1) == 2.0


def request(scope: tk.Scope, flip: tk.Flip = tk.FLIP_CLIENT) -> pb.FileUnlearningRequest:
    wanted = tk.UnlearningRequest(
        request_key="r1", scope=scope, mode=tk.MODE_SPECIAL, flip=flip, strength=tk.Strength(kappa=2.0)
    )
    return pb.FileUnlearningRequest(request=wanted)


@pytest.mark.parametrize("flip", [tk.FLIP_CLIENT, tk.FLIP_SERVER])
def test_a_target_trains_as_before_and_its_update_is_negated(federation: Federation, flip: tk.Flip) -> None:
    with join(federation, "a") as a, join(federation, "b") as b, busy(b):
        train(next_work(a), 0.0)
        eventually(lambda: next_round(a) == 2)
        filed = a.transport.file_unlearning(request(tk.SCOPE_CLIENT, flip))
        work = next_work(a)
        assert isinstance(work, Assignment)
        assert work.scale == -2.0
        assert work.ticket_id == filed.ticket.id
        assert train(work, 0.125)
        assert list(a) == []
        assert a.leave is not None
        assert a.leave.reason == pb.LeaveOrder.REASON_FORGOTTEN
        assert federation.weights(a.transport.list_my_tickets().tickets[0].version_unlearned) == -0.25
        with pytest.raises(Forgotten, match="readmit"):
            join(federation, "a")
        assert b.leave is None


def test_a_ticket_is_followed_across_a_restart_to_its_end(federation: Federation) -> None:
    with join(federation, "a") as a, join(federation, "b") as b, busy(b):
        train(next_work(a), 0.0)
        eventually(lambda: next_round(a) == 2)
        ticket = a.transport.file_unlearning(request(tk.SCOPE_CLIENT)).ticket
        stream = a.transport.follow_ticket(ticket.id)
        seen = [next(stream).ticket.state]
        federation.stop()
        federation.start()
        train(next_work(a), 1.0)
        sums = tk.EvaluationSums(samples=10, loss_sum=1.0, score_sum=5.0)
        for reply in stream:
            seen.append(reply.ticket.state)
            if reply.ticket.state == tk.TICKET_STATE_APPLIED:
                for version in (reply.ticket.version_before, reply.ticket.version_unlearned):
                    a.transport.report_measurement(
                        pb.ReportMeasurementRequest(ticket_id=ticket.id, version=version, forget=sums)
                    )
        assert tk.TICKET_STATE_APPLIED in seen
        assert seen[-1] == tk.TICKET_STATE_COMPLETED
        assert seen[-1] in ENDED


def test_training_that_is_no_longer_wanted_is_abandoned(federation: Federation) -> None:
    with join(federation, "a") as a, join(federation, "b"):
        work = next_work(a)
        assert isinstance(work, Assignment)
        assert not work.abandoned()
        a.transport.file_unlearning(request(tk.SCOPE_CLIENT))
        assert work.abandoned.wait(10)
        assert not train(work, 1.0)


def test_both_parts_of_a_sample_request_are_distinct(federation: Federation, tmp_path: Path) -> None:
    ids = [f"s{i}" for i in range(10)]
    state = StateDirectory.of("f-1", "a", tmp_path)
    parts_of = connect(
        federation.target,
        Offer(data=ids, parts=["main", "retain", "forget"], manifest=MANIFEST),
        name="a",
        state=tmp_path,
        running=Running(wait_seconds=1.0),
    )
    with parts_of as a, join(federation, "b") as b, busy(b):
        train(next_work(a), 0.0)
        eventually(lambda: next_round(a) == 2)
        wanted = request(tk.SCOPE_SAMPLES)
        wanted.request.forget_samples, wanted.request.retain_samples = 4, 6
        wanted.request.mode = tk.MODE_REGULAR
        state.prepare("r1", ids[:4])
        ticket = a.transport.file_unlearning(wanted).ticket
        parts = {}
        for _ in range(2):
            work = next_work(a)
            assert isinstance(work, Assignment)
            assert work.indices is not None
            parts[work.part] = (work.samples, work.forget_request, work.indices.tolist())
            train(work, 1.0)
        assert parts == {"retain": (6, "", [4, 5, 6, 7, 8, 9]), "forget": (4, "r1", [0, 1, 2, 3])}
        assert state.exclusion("r1") == Exclusion("r1", frozenset(map(state.salted, ids[:4])), ticket.id)
        eventually(lambda: a.transport.list_my_tickets().tickets[0].HasField("version_unlearned"))
        # 6/20 of the retained part, -kappa of the forgotten one, nothing from b
        version = a.transport.list_my_tickets().tickets[0].version_unlearned
        assert federation.weights(version) == pytest.approx(0.3 - 2.0)


def test_a_newer_worker_of_the_same_name_ends_the_older_one(federation: Federation) -> None:
    with join(federation, "a") as old, join(federation, "a") as new:
        with pytest.raises(Superseded):
            next_work(old)
        assert new.step() is None


def test_a_worker_that_only_helps_out_does_not_take_over(federation: Federation) -> None:
    with join(federation, "a"), pytest.raises(WorkerAlive):
        join(federation, "a", only_if_no_worker=True)
    join(federation, "a", only_if_no_worker=True).close()


def test_an_unknown_session_joins_again_as_the_same_member(federation: Federation) -> None:
    with join(federation, "a") as a, join(federation, "b"):
        membership = a.membership
        a._id = "99.unknown"
        assert isinstance(next_work(a), Assignment)
        assert a.membership == membership


def test_a_worker_of_a_restored_server_leaves_out_samples_whose_withdrawal_the_server_lost(
    federation: Federation, tmp_path: Path
) -> None:
    offer, running = Offer(data=["p-0", "p-1", "p-2"], manifest=MANIFEST), Running(wait_seconds=1.0, heartbeats=False)
    with connect(federation.target, offer, name="a", state=tmp_path / "client", running=running) as a:
        known = a._support.samples
        assert known is not None
        key = known.state.request_key(["p-0"])
        known.state.prepare(key, ["p-0"])
        request = tk.UnlearningRequest(request_key=key, scope=tk.SCOPE_SAMPLES, forget_samples=1, retain_samples=2)
        ticket = a.transport.file_unlearning(pb.FileUnlearningRequest(request=request)).ticket.id
        known.state.filed(key, ticket)
        # The owner withdrew it. The server was restored from a backup in which it is open, and which knows no session.
        known.state.withdraw(key)
        assert known.trainable().tolist() == [0, 1, 2]
        a._id = "99.unknown"
        with join(federation, "b"):
            work = next_work(a)
            assert isinstance(work, Assignment)
            assert work.indices is not None
            assert work.indices.tolist() == [1, 2]


def test_a_new_number_of_samples_is_announced_by_the_same_worker(federation: Federation) -> None:
    counts = iter([10, 10, 7])
    with connect(federation.target, Offer(samples=lambda: next(counts)), name="a") as a:
        assert a.step() is None
        assert federation.server.engine.state.members["a"].samples == 10
        assert a.step() is None
        assert a.samples == 7
        assert federation.server.engine.state.members["a"].samples == 7


def test_declined_work_does_not_come_again(federation: Federation) -> None:
    with join(federation, "a") as a, join(federation, "b") as b:
        work = next_work(a)
        assert isinstance(work, Assignment)
        work.decline("out of memory")
        train(next_work(b), 1.0)
        again = next_work(a)
        assert isinstance(again, Assignment)
        assert again.round == 2


def test_a_superseded_worker_declines_nothing(federation: Federation) -> None:
    """The newest process of the same name may be able to do the work."""
    with join(federation, "a") as old, join(federation, "b"):
        work = next_work(old)
        assert isinstance(work, Assignment)
        with join(federation, "a") as new:
            with pytest.raises(Superseded):
                work.decline("out of memory")
            current = federation.server.engine.state.round
            assert current is not None
            assert not current.declined
            again = next_work(new)
            assert isinstance(again, Assignment)
            assert again.round == work.round
            again.decline("out of memory")
            current = federation.server.engine.state.round
            assert current is not None
            assert current.declined == {"a/main": "out of memory"}


def test_hold_outs_are_evaluated(tmp_path: Path) -> None:
    plan = Plan(rounds=1, min_clients=1, heartbeat_seconds=0.1, absent_seconds=30, evaluate_every=1)
    running = Federation(tmp_path / "state", FederationConfig(id="f-2", model="none", plan=plan), MANIFEST)
    try:
        with connect(running.target, Offer(samples=10, holdout_samples=4), name="a") as a:
            train(next_work(a), 1.0)
            work = next_work(a)
            assert isinstance(work, EvaluationRequest)
            assert work.version == 1
            assert work.weights["w"][0, 0] == 1.0
            assert work.report(4, 2.0, 3.0)
            score = running.server.engine.state.models[1].score
            assert score is not None
            assert score.score == 0.75
    finally:
        running.stop()


def test_another_model_is_refused_before_joining(federation: Federation) -> None:
    other = Manifest((TensorSpec("w", "f32", (3,)),))
    with pytest.raises(Mismatch, match="--model"):
        connect(federation.target, Offer(samples=1, manifest=other), name="a")
    assert "a" not in federation.server.engine.state.members


def test_a_wrong_address_fails_with_a_clear_message() -> None:
    started = time.monotonic()
    with pytest.raises(Unavailable, match=r"127\.0\.0\.1:1.*gave up after 0.3 s"):
        connect(GrpcTransport("127.0.0.1:1", "a", retry=RetryPolicy(0.3)), Offer(samples=1))
    assert time.monotonic() - started < 5


def test_closing_ends_a_wait_in_another_thread(federation: Federation) -> None:
    a = join(federation, "a")
    federation.stop()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(next_work, a)
        with pytest.raises(TimeoutError):
            waiting.result(0.3)
        a.close()
        with pytest.raises(Unavailable):
            waiting.result(10)
    federation.start()
