"""A real server process that loses its unsynced writes when it is killed, and light clients that note every answer.

Updates depend only on client, round and scale, so that the final model is the same after any number of interruptions.
"""

from __future__ import annotations

import hashlib
import shutil
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import grpc
import numpy as np

from puf_common.tensors.manifest import MODEL, UPDATE, Manifest, TensorSpec
from puf_common.v1 import federation_pb2 as fed
from puf_common.v1 import federation_pb2_grpc as rpc
from puf_common.v1 import tickets_pb2 as tk
from puf_lab.federations.processes import ServerProcess
from puf_server.core.state.tickets import TicketState
from puf_server.storage.creation import create
from puf_server.storage.state_store import Store
from tests.crash.checking import check_promises
from tests.databases import sqlite
from tests.grpc.raw import frames
from tests.running import metadata, tiny_config
from tests.unsynced.guarantees import Guarantee, guarantees
from tests.unsynced.replay import Layer

__all__ = ["Cut", "make"]

MANIFEST = Manifest((TensorSpec("w", "f32", (30_000,)), TensorSpec("seen", "i64", (), "buffer")))
NAMES = ("a", "b", "c")
TARGET = "b"
# Hold-out score by model version: it falls in the unlearning round and recovers.
_SCORES = {12: 4.0, 13: 1.0, 14: 3.0}
_ROUNDS = 12
_CHUNK = 16_384
# The longest time between the start of a server and its end, in seconds.
_LONGEST = 0.6


def make(directory: Path) -> Path:
    config = tiny_config(
        plan={"rounds": _ROUNDS, "min_clients": 3, "absent_seconds": 1e6},
        forgetting={"measure_seconds": 600.0, "also_remember": ("fukd",)},
        limits={"writes_per_minute": 1e9},
    )
    create(directory, config, MANIFEST, bytearray(MANIFEST.nbytes(MODEL)), time.time())
    return directory


class _Client:
    def __init__(self, address: str, name: str, told: Callable[..., None]) -> None:
        self.name, self._told = name, told
        self._stub = rpc.FederationStub(grpc.insecure_channel(address))
        self._options: dict[str, Any] = {"metadata": metadata(name), "timeout": 20.0}
        self._session = ""

    def call(self, method: str, request: Any) -> Any:
        return getattr(self._stub, method)(request, **self._options)

    def turn(self) -> None:
        """Joins if necessary, and does at most one piece of work."""
        if not self._session:
            about = self.call("Describe", fed.DescribeRequest())
            request = fed.JoinRequest(
                instance=f"i-{self.name}",
                samples=10,
                holdout_samples=5,
                manifest_fingerprint=MANIFEST.fingerprint,
                recipe_fingerprint=about.recipe.fingerprint,
            )
            self._session = self.call("Join", request).session
            self._told("joined", self.name)
        reply = self.call("WaitForWork", fed.WaitForWorkRequest(session=self._session, timeout_seconds=0.05))
        if reply.HasField("train"):
            self._submit(reply.train)
        elif reply.HasField("evaluate"):
            work = reply.evaluate
            sums = tk.EvaluationSums(samples=5, loss_sum=1.0, score_sum=_SCORES.get(work.version, 5.0))
            self.call(
                "ReportEvaluation",
                fed.ReportEvaluationRequest(evaluation=work.evaluation, version=work.version, holdout=sums),
            )
            self._told("evaluated", work.evaluation, self.name)

    def _submit(self, work: fed.TrainWork) -> None:
        payload = bytearray(MANIFEST.nbytes(UPDATE))
        views = MANIFEST.views(payload, UPDATE)
        views["w"][:] = np.random.default_rng([work.key.round, NAMES.index(self.name)]).random(30_000) * work.scale
        views["seen"][...] = work.key.round
        header = fed.UpdateHeader(
            key=work.key,
            base_version=work.base_version,
            samples=10,
            applied_scale=work.scale if work.flip == tk.FLIP_CLIENT else 1.0,
            byte_length=len(payload),
            digest=hashlib.sha256(payload).digest(),
            manifest_fingerprint=MANIFEST.fingerprint,
            unlearned_samples=10 if work.scale < 0 else 0,
        )
        self.call("SubmitUpdate", iter(list(frames(header, bytes(payload), _CHUNK))))
        self._told("update", work.key.round, work.key.attempt, f"{self.name}/main", header.digest.hex())

    def ask(self) -> bool:
        """Asks to be forgotten and measures the models. Returns whether the ticket is completed."""
        request = tk.UnlearningRequest(request_key="k", scope=tk.SCOPE_CLIENT)
        ticket = self.call("FileUnlearning", fed.FileUnlearningRequest(request=request)).ticket
        self._told("ticket", ticket.id)
        known = {m.version for m in ticket.measurements}
        if ticket.applied_round:
            for version in {ticket.version_before, ticket.version_unlearned} - known:
                sums = tk.EvaluationSums(samples=10, loss_sum=1.0, score_sum=5.0)
                self.call(
                    "ReportMeasurement",
                    fed.ReportMeasurementRequest(ticket_id=ticket.id, version=version, forget=sums),
                )
                self._told("measured", ticket.id, version)
        return bool(ticket.state == tk.TICKET_STATE_COMPLETED)


class Cut:
    """Runs a federation to its end. The server is killed at random moments and loses what it did not sync."""

    def __init__(self, directory: Path, library: Path, seed: int, kills: int, without: str = "") -> None:
        self._directory, self._random = directory, Random(seed)
        self._left = kills
        # Syncs that have no effect: of files (f) or directories (d).
        self._without = without
        self.layer = Layer(make(directory / "state"), library)
        self.facts: list[tuple[object, ...]] = []
        self.lost: Counter[str] = Counter()
        self.kills = 0

    def run(self) -> list[str]:
        """Returns the digests of all models."""
        while not self._serve():
            self.kills += 1
            self.lost += self.layer.crash(self._random)
            self._check()
        assert not self.layer.differences(), self.layer.differences()
        store = Store.open(self.layer.root)
        state = store.load()
        (ticket,) = state.tickets.values()
        assert ticket.state is TicketState.COMPLETED
        assert not sqlite(store).execute("SELECT facts FROM audit WHERE event = 'round.update_lost'").fetchall()
        store.close()
        return [m.digest for _, m in sorted(state.models.items())]

    def _check(self) -> None:
        """Opens a copy of what the power cut left: nothing acknowledged is missing."""
        copy = self._directory / "copy"
        shutil.copytree(self.layer.root, copy)
        with guarantees(Guarantee.OPENS):
            store = Store.open(copy)
        try:
            with guarantees(Guarantee.OPENS):
                state = store.load()
            with guarantees(Guarantee.ACKNOWLEDGED):
                check_promises(state, self.facts)
            with guarantees(Guarantee.MODELS):
                store.require_files(state)
            with guarantees(Guarantee.UPDATES):
                damaged = store.damaged_updates(state.round)
                assert not damaged, damaged
        finally:
            store.close()
            shutil.rmtree(copy)

    def _serve(self) -> bool:
        """One server process: True if the federation ended, False if the process was killed."""
        env = {**self.layer.environment, "UNSYNCED_WITHOUT": self._without}
        server = ServerProcess(self.layer.root, self._directory / "server.log", env=env)
        timer = threading.Timer(self._random.uniform(0.0, _LONGEST), lambda: server.send(signal.SIGKILL))
        if self._left:
            self._left -= 1
            timer.start()
        try:
            clients = [_Client(server.address, name, self._told) for name in NAMES]
            while not self._over(clients):
                pass
            timer.cancel()
            timer.join() if timer.is_alive() else None
            if server.code is None:
                server.control.stop()
                server.wait(30)
            return server.code == 0
        except grpc.RpcError as error:
            if error.code() not in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED):
                raise
            timer.join(30)
            assert server.wait(30) == -signal.SIGKILL, server.tail()
            return False
        finally:
            timer.cancel()
            server.end()

    def _over(self, clients: list[_Client]) -> bool:
        done = False
        about = clients[0].call("Describe", fed.DescribeRequest())
        asked = any(fact[0] == "ticket" for fact in self.facts)
        idle = about.position.model_version >= _ROUNDS
        for client in clients:
            if client.name == TARGET and (asked or idle):
                done = client.ask()
            if not (client.name == TARGET and done):
                self._turn(client)
        return done and about.position.phase == fed.PHASE_IDLE

    def _turn(self, client: _Client) -> None:
        try:
            client.turn()
        except grpc.RpcError as error:
            # The target is forgotten and may not work any more; a late answer is not wanted.
            if error.code() not in (grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.FAILED_PRECONDITION):
                raise

    def _told(self, *fact: object) -> None:
        self.facts.append(fact)
