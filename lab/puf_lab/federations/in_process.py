"""A federation in this process: the server's core, store and handlers and the clients' own routines, without a network.

Nothing is reimplemented: the same sessions ask the same handlers, so the same seeds give the same weights as a
federation of processes does.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from puf_client.session.connect import connect
from puf_client.session.session import Session
from puf_client.state.directory import StateDirectory
from puf_client.terminal import Display
from puf_client.transport.base import ENDED
from puf_client.unlearning.request import Plan as ForgetPlan
from puf_client.unlearning.request import file
from puf_client.worker.trainer import prepare
from puf_client.worker.worker import Worker
from puf_common.errors import PufError
from puf_common.models.module_tensors import manifest_of, payload_of
from puf_common.tensors.chunks import Payload, chunks
from puf_common.v1 import federation_pb2 as fed
from puf_common.v1 import tickets_pb2 as tk
from puf_lab.experiments.setting import Setting, Spent, client_name
from puf_server.core.config import FederationConfig, Forgetting
from puf_server.core.state.state import State
from puf_server.core.state.tickets import Ticket as TicketRecord
from puf_server.engine.engine import Engine
from puf_server.rpc.requests import Handlers
from puf_server.storage.state_store import Store, create

__all__ = ["LocalFederation", "LocalTransport", "copy_state", "create_server", "leave_out"]

# Clients in this process do not beat; they are there, and one that is left over goes on alone.
_ALWAYS = {"absent_seconds": 1e9, "heartbeat_seconds": 5.0, "min_clients": 1}


class LocalTransport:
    """`puf_client.transport.base.Transport` by calling the handlers."""

    def __init__(self, handlers: Handlers, name: str) -> None:
        self._handlers = handlers
        self._name = name

    @property
    def name(self) -> str:
        return self._name

    def describe(self) -> fed.DescribeReply:
        return self._handlers.describe(fed.DescribeRequest())

    def lease_shard(self, request: fed.LeaseShardRequest) -> fed.LeaseShardReply:
        return self._handlers.lease_shard(self._name, request)

    def join(self, request: fed.JoinRequest) -> fed.JoinReply:
        return self._handlers.join(self._name, request)

    def heartbeat(self, request: fed.HeartbeatRequest) -> fed.HeartbeatReply:
        return self._handlers.heartbeat(self._name, request)

    def wait_for_work(self, request: fed.WaitForWorkRequest) -> fed.WaitForWorkReply | None:
        return self._handlers.work(self._name, request.session)

    def decline_work(self, request: fed.DeclineWorkRequest) -> fed.DeclineWorkReply:
        return self._handlers.decline(self._name, request)

    def leave(self, request: fed.LeaveRequest) -> fed.LeaveReply:
        return self._handlers.leave(self._name, request)

    def fetch_model(self, version: int) -> tuple[fed.ModelHeader, Payload]:
        model = self._handlers.model_for(self._name, version)
        payload = self._handlers.engine.store.models.payload(model)
        self._handlers.count_sent(len(payload))
        return self._handlers.model_header(model), payload

    def submit_update(self, header: fed.UpdateHeader, payload: Payload) -> fed.SubmitUpdateReply:
        upload = self._handlers.begin_upload(self._name, header)
        try:
            for chunk in chunks(payload):
                upload.write(chunk)
            return self._handlers.finish_upload(upload)
        finally:
            upload.discard()

    def report_evaluation(self, request: fed.ReportEvaluationRequest) -> fed.ReportEvaluationReply:
        return self._handlers.report_evaluation(self._name, request)

    def file_unlearning(self, request: fed.FileUnlearningRequest) -> fed.FileUnlearningReply:
        return self._handlers.file_unlearning(self._name, request)

    def list_my_tickets(self) -> fed.ListMyTicketsReply:
        return self._handlers.list_my_tickets(self._name)

    def follow_ticket(self, ticket_id: str) -> Iterator[fed.FollowTicketReply]:
        ticket = self._handlers.ticket(self._name, ticket_id)
        yield fed.FollowTicketReply(ticket=ticket, position=self._handlers.position())
        if ticket.state not in ENDED:
            raise PufError("a ticket of a federation in this process is followed by looking at it again")

    def report_measurement(self, request: fed.ReportMeasurementRequest) -> fed.ReportMeasurementReply:
        return self._handlers.report_measurement(self._name, request)

    def withdraw_unlearning(self, request: fed.WithdrawUnlearningRequest) -> fed.WithdrawUnlearningReply:
        return self._handlers.withdraw(self._name, request)

    def get_receipt(self, ticket_id: str) -> fed.GetReceiptReply:
        return self._handlers.get_receipt(self._name, fed.GetReceiptRequest(ticket_id=ticket_id))

    def present_receipt(self, request: fed.PresentReceiptRequest) -> fed.PresentReceiptReply:
        return self._handlers.present_receipt(self._name, request)

    def close(self) -> None:
        pass


class LocalFederation:
    """Server and clients of one setting, driven step by step. `directory` keeps all of it and can be copied when closed."""

    def __init__(
        self,
        setting: Setting,
        directory: Path,
        *,
        without: Collection[int] = (),
        without_samples: Mapping[int, Sequence[str]] | None = None,
        keep_models: int = 0,
    ) -> None:
        self.setting = setting
        self.directory = directory
        self._left_out = without_samples or {}
        shards = [i for i in range(setting.clients) if i not in without]
        if not (directory / "server").exists():
            config = setting.federation(clients=len(shards), keep_models=keep_models, **_ALWAYS)
            create_server(config, directory / "server", setting.weights)
        self.engine = Engine(Store.open(directory / "server"), time.time)
        self.handlers = Handlers(self.engine)
        self._clients: dict[int, tuple[Session, Worker]] = {}
        for shard in without:
            member = self.state.members.get(client_name(shard))
            if member is not None:
                self.handlers.leave(member.name, fed.LeaveRequest(session=member.session))
        for shard in (*shards, *range(setting.clients, setting.shards)):
            self._clients[shard] = self._join(shard)

    def __enter__(self) -> LocalFederation:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.engine.close()

    @property
    def state(self) -> State:
        return self.engine.state

    def train(self, tick: Callable[[int], None] = lambda rounds: None) -> None:
        """Runs until the planned rounds are done; `tick` is told of each."""
        self._until(lambda s: s.trained >= s.planned and s.round is None and s.evaluation is None, lambda _: tick(1))

    def extend(self, rounds: int) -> None:
        """Plans more training rounds."""
        self.engine.call(lambda state, _: (replace(state, planned=state.trained + rounds), None))

    def forget(
        self,
        targets: Collection[int],
        *,
        mode: str | None = None,
        kappa: float | None = None,
        eta_u: float | None = None,
        epochs: int = 0,
        samples: Mapping[int, Sequence[str]] | None = None,
        progress: Callable[[State], None] = lambda state: None,
    ) -> list[TicketRecord]:
        """Lets clients ask together to be forgotten, wholly or with some samples, and runs until the tickets are completed.

        By the federation's method; mode, kappa, eta_u and epochs are PUF's, and None and 0 leave them to its policy.
        """
        strength = tk.Strength(epochs=epochs)
        if kappa is not None:
            strength.kappa = kappa
        elif eta_u is not None:
            strength.eta_u = eta_u
        ids = []
        # As an operator would: without the pause the first to ask would have a round of its own.
        self._paused(True)
        for shard in sorted(targets):
            request = tk.UnlearningRequest(
                request_key=f"whole-{shard}",
                scope=tk.SCOPE_CLIENT,
                mode=f"MODE_{(mode or 'unspecified').upper()}",
                strength=strength,
            )
            transport = LocalTransport(self.handlers, client_name(shard))
            chosen = tuple((samples or {}).get(shard, ()))
            state = self._state_dir(transport)
            if chosen:
                request.scope = tk.SCOPE_SAMPLES
                request.request_key = state.request_key(chosen)
                request.forget_samples = len(chosen)
                request.retain_samples = self._clients[shard][1].count() - len(chosen)
            ids.append(file(ForgetPlan(request, chosen), state, transport).id)
        self._paused(False)
        self._until(lambda s: not any(s.tickets[i].open for i in ids), progress)
        return [self.state.tickets[i] for i in ids]

    def payload(self, version: int | None = None) -> bytearray:
        """A model's bytes, also of one that was withdrawn meanwhile."""
        model = self.state.models[self.state.version if version is None else version]
        return self.engine.store.models.payload(model)

    def copy(
        self,
        directory: Path,
        *,
        without: Collection[int] = (),
        forgetting: Forgetting | None = None,
    ) -> LocalFederation:
        """The same federation once more, as it is now: for another way to go on from here.

        `forgetting` is its policy from then on; a method that needs history works where this federation kept it
        (`also_remember`). Clients do not notice: the policy is no part of the recipe.
        """
        copy_state(self.directory, directory, forgetting.model_dump(mode="json") if forgetting else {})
        return LocalFederation(self.setting, directory, without=without)

    def spent(self) -> Spent:
        """What its committed rounds have cost so far."""
        return Spent.of((r.nbytes_up, r.nbytes_down, r.samples_processed) for r in self.state.records.values())

    def _paused(self, paused: bool) -> None:
        self.engine.call(lambda state, _: (replace(state, paused=paused), None))

    def _state_dir(self, transport: LocalTransport) -> StateDirectory:
        return StateDirectory.of(transport.describe().federation_id, transport.name, self.directory / "clients")

    def _join(self, shard: int) -> tuple[Session, Worker]:
        options = self.setting.options(shard)
        transport = LocalTransport(self.handlers, options.name)
        description = transport.describe()
        state = self._state_dir(transport)
        if shard in self._left_out:
            leave_out(state, self._left_out[shard])
        trainer = prepare(options, description)
        worker = Worker(trainer, state, transport, Display(), distiller=options.distiller)
        session = connect(
            transport,
            samples=worker.count(),
            holdout_samples=0 if options.distiller else trainer.data.holdout_samples,
            unlabeled_samples=worker.unlabeled,
            manifest=trainer.manifest,
            description=description,
            heartbeats=False,
        )
        return session, worker

    def _until(self, done: Callable[[State], bool], progress: Callable[[State], None]) -> None:
        """Gives every client its turn until the state says so."""
        seen = self.state.version
        while not done(self.state):
            before = self.state
            for shard, (session, worker) in list(self._clients.items()):
                work = session.step()
                if work is not None:
                    worker.do(work, session)
                if session.leave is not None:
                    del self._clients[shard]
                self.engine.fold_ready()
                if self.state.version != seen:
                    seen = self.state.version
                    progress(self.state)
            self.engine.tick()
            if self.state is before:
                raise PufError("the federation does not go on: nobody has work and nothing is awaited")


def copy_state(source: Path, target: Path, forgetting: Mapping[str, Any]) -> None:
    """Copies a federation that nobody serves, and lets the copy forget in another way."""
    shutil.copytree(source, target, ignore=shutil.ignore_patterns("lock", "*.part"))
    if forgetting:
        path = target / "server" / "federation.json"
        described = json.loads(path.read_text())
        # As in every setting: a model that collapses is a result, and nobody is there to release it.
        described["config"]["forgetting"].update({**forgetting, "collapse_ratio": 0.0})
        FederationConfig.model_validate(described["config"])
        path.write_text(json.dumps(described, indent=1))


def leave_out(state: StateDirectory, samples: Sequence[str]) -> None:
    """Keeps samples out of training from the start, as a client does whose request for them was served long ago."""
    state.prepare("left-out", samples)
    state.filed("left-out", "left-out")


def create_server(config: FederationConfig, directory: Path, weights: Path | None = None) -> None:
    """A new federation's state; its model is fresh, or starts from a published checkpoint."""
    from puf_common.models.networks import build_any

    model = build_any(config.model, config.model_options, config.recipe.seed)
    if weights is not None:
        from puf_common.models.mit import load_published

        load_published(model, weights)
    manifest = manifest_of(model)
    create(directory, config, manifest, payload_of(model, manifest), time.time())
