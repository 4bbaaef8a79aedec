"""A small federation in this thread: three clients, two rounds, one client is forgotten, the others recover.

Updates depend only on client and round, so the final model is the same after any number of interruptions.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.grpc.raw import update_bytes
from tests.running import TINY, tiny_config, tiny_payload

from puf_common.receipts.signing_key import SigningKey
from puf_common.tensors.chunks import chunks
from puf_common.v1 import federation_pb2 as fed
from puf_common.v1 import tickets_pb2 as tk
from puf_server.core.state.state import State
from puf_server.core.state.tickets import TicketState
from puf_server.engine.engine import Engine
from puf_server.rpc.requests import Handlers
from puf_server.storage.creation import create
from puf_server.storage.durable import DISK, Files
from puf_server.storage.state_store import Store

__all__ = ["NAMES", "TARGET", "Small", "make", "run", "same_randomness"]

NAMES = ("a", "b", "c")
TARGET = "b"
Told = Callable[..., None]

# Hold-out score by model version: it falls in the unlearning round and recovers in two rounds.
_SCORES = {2: 4.0, 3: 1.0, 4: 3.0}


def make(root: Path, files: Files = DISK) -> Path:
    """A new federation in `root/state`."""
    config = tiny_config(
        plan={"rounds": 2, "min_clients": 3, "absent_seconds": 1e9},
        # The sums of each client's updates are stored, too: files that are written, replaced, and deleted for the target.
        forgetting={"measure_seconds": 60.0, "also_remember": ("fukd",)},
    )
    create(root / "state", config, TINY, tiny_payload(), 1000.0, files)
    return root / "state"


class Small:
    """An open server and its clients. The clients keep no state."""

    def __init__(
        self, directory: Path, files: Files = DISK, *, now: float = 1000.0, told: Told = lambda *_: None
    ) -> None:
        self._now = now
        self.engine = Engine(Store.open(directory, files), self._clock)
        self.handlers = Handlers(self.engine)
        self._told = told

    def _clock(self) -> float:
        self._now += 0.01
        return self._now

    @property
    def state(self) -> State:
        return self.engine.state

    def to_the_end(self) -> None:
        """Continues from the current state until the end."""
        while not self._over():
            before = self.state
            for name in NAMES:
                self._turn(name)
            self._target()
            self.engine.fold_ready()
            self._told("version", self.state.version)
            self.engine.tick()
            assert self.state is not before, "the federation does not go on"

    def close(self) -> None:
        self.engine.close()

    def _over(self) -> bool:
        tickets = self.state.tickets.values()
        return bool(tickets) and all(t.state is TicketState.COMPLETED for t in tickets) and self.state.round is None

    def _turn(self, name: str) -> None:
        """One client, as after its start: joins if necessary and does its assignment."""
        if name == TARGET and any(t.applied for t in self.state.tickets.values()):
            return
        request = fed.JoinRequest(
            instance=f"i-{name}",
            samples=10,
            holdout_samples=5,
            manifest_fingerprint=TINY.fingerprint,
            recipe_fingerprint=self.engine.config.recipe_fingerprint(),
        )
        session = self.handlers.join(name, request).session
        self._told("joined", name)
        reply = self.handlers.work(name, session)
        if reply is None:
            return
        if reply.HasField("train"):
            self._submit(name, reply.train)
        elif reply.HasField("evaluate"):
            self._evaluate(name, reply.evaluate)

    def _submit(self, name: str, work: fed.TrainWork) -> None:
        payload = update_bytes(0.01 * (1 + NAMES.index(name)) * work.key.round * work.scale)
        header = fed.UpdateHeader(
            key=work.key,
            base_version=work.base_version,
            samples=10,
            applied_scale=work.scale,
            byte_length=len(payload),
            digest=hashlib.sha256(payload).digest(),
            manifest_fingerprint=TINY.fingerprint,
        )
        upload = self.handlers.begin_upload(name, header)
        try:
            for chunk in chunks(payload, 24):
                upload.write(chunk)
            self.handlers.finish_upload(upload)
        finally:
            upload.discard()
        self._told("update", work.key.round, work.key.attempt, f"{name}/main", header.digest.hex())

    def _evaluate(self, name: str, work: fed.EvaluateWork) -> None:
        sums = tk.EvaluationSums(samples=5, loss_sum=1.0, score_sum=_SCORES.get(work.version, 5.0))
        self.handlers.report_evaluation(
            name, fed.ReportEvaluationRequest(evaluation=work.evaluation, version=work.version, holdout=sums)
        )
        self._told("evaluated", work.evaluation, name)

    def _target(self) -> None:
        """The target: asks to be forgotten after training, then measures the models."""
        if self.state.trained < 2 or self.state.version < 2:
            return
        request = tk.UnlearningRequest(request_key="k", scope=tk.SCOPE_CLIENT)
        ticket = self.handlers.tickets.file_unlearning(TARGET, fed.FileUnlearningRequest(request=request)).ticket
        self._told("ticket", ticket.id)
        if not ticket.applied_round:
            return
        known = {m.version for m in ticket.measurements}
        for version in {ticket.version_before, ticket.version_unlearned} - known:
            sums = tk.EvaluationSums(samples=10, loss_sum=1.0, score_sum=5.0)
            self.handlers.tickets.report_measurement(
                TARGET, fed.ReportMeasurementRequest(ticket_id=ticket.id, version=version, forget=sums)
            )
            self._told("measured", ticket.id, version)


def run(
    root: Path, files: Files = DISK, told: Told = lambda *_: None, init: Callable[[], None] = lambda: None
) -> list[str]:
    """Runs a new federation to its end. Returns the digests of all models."""
    directory = make(root, files)
    told("made")
    init()
    small = Small(directory, files, told=told)
    small.to_the_end()
    digests = [m.digest for m in small.state.models.values()]
    small.close()
    return digests


@contextmanager
def same_randomness() -> Iterator[None]:
    """Makes sessions, tickets and temporary names the same in every run, so that runs can be compared."""
    numbers = iter(range(10**9))
    key = _KEY
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("secrets.token_hex", lambda n=8: f"{next(numbers):0{2 * n}x}")
        patch.setattr(SigningKey, "generate", classmethod(lambda cls: key))
        yield


_KEY = SigningKey.generate()
