"""A federation in this process: the server's core, store and handlers and the clients' own routines, without a network.

Nothing is reimplemented: the same sessions ask the same handlers, so the same seeds give the same weights as a
federation of processes does.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from pathlib import Path

from puf_client.agent import Worker
from puf_client.connection import ENDED
from puf_client.display import Display
from puf_client.learner import prepare
from puf_client.session import Session, connect
from puf_client.statedir import StateDir
from puf_common.errors import PufError
from puf_common.models import manifest_of, payload_of
from puf_common.v1 import federation_pb2 as fed
from puf_common.v1 import tickets_pb2 as tk
from puf_common.wire import Payload, chunks
from puf_lab.setting import Setting, client_name
from puf_server.core.config import FederationConfig, Forgetting
from puf_server.core.state import State
from puf_server.core.state import Ticket as TicketRecord
from puf_server.engine import Engine
from puf_server.handlers import Handlers
from puf_server.store import Store, create

__all__ = ["LocalFederation", "LocalTransport"]

# Clients in this process do not beat; they are there.
_ALWAYS = {"absent_seconds": 1e9, "heartbeat_seconds": 5.0}


class LocalTransport:
    """`puf_client.connection.Transport` by calling the handlers."""

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
        payload = self._handlers.engine.store.model_payload(model)
        self._handlers.count_sent(len(payload))
        return self._handlers.model_header(model), payload

    def submit_update(self, header: fed.UpdateHeader, payload: Payload) -> fed.SubmitUpdateReply:
        upload = self._handlers.begin_upload(self._name, header)
        try:
            for chunk in chunks(payload):
                upload.write(chunk)
            return upload.finish()
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
        self, setting: Setting, directory: Path, *, without: Collection[int] = (), clients: int | None = None
    ) -> None:
        self.setting = setting
        self.directory = directory
        shards = [i for i in range(setting.clients) if i not in without]
        if not (directory / "server").exists():
            _create(setting.federation(clients=clients or len(shards), **_ALWAYS), directory / "server")
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

    def train(self, progress: Callable[[State], None] = lambda state: None) -> None:
        """Runs until the planned rounds are done."""
        self._until(lambda s: s.trained >= s.planned and s.round is None and s.survey is None, progress)

    def extend(self, rounds: int) -> None:
        """Plans more training rounds."""
        self.engine.call(lambda state, _: (replace(state, planned=state.trained + rounds), None))

    def forget(
        self,
        targets: Collection[int],
        *,
        mode: str | None = None,
        kappa: float | None = None,
        epochs: int = 0,
        progress: Callable[[State], None] = lambda state: None,
    ) -> list[TicketRecord]:
        """Lets whole clients ask to be forgotten together, and runs until their tickets are completed.

        By the federation's method; mode, kappa and epochs are PUF's, and None and 0 leave them to its policy.
        """
        strength = tk.Strength(epochs=epochs)
        if kappa is not None:
            strength.kappa = kappa
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
            reply = self.handlers.file_unlearning(client_name(shard), fed.FileUnlearningRequest(request=request))
            ids.append(reply.ticket.id)
        self._paused(False)
        self._until(lambda s: not any(s.tickets[i].open for i in ids), progress)
        return [self.state.tickets[i] for i in ids]

    def payload(self, version: int | None = None) -> bytearray:
        """A model's bytes, also of one that was withdrawn meanwhile."""
        model = self.state.models[self.state.version if version is None else version]
        return self.engine.store.model_payload(model)

    def copy(
        self, directory: Path, *, without: Collection[int] = (), forgetting: Forgetting | None = None
    ) -> LocalFederation:
        """The same federation once more, as it is now: for another way to go on from here.

        `forgetting` is its policy from then on; a method that needs history works where this federation kept it
        (`also_remember`). Clients do not notice: the policy is no part of the recipe.
        """
        shutil.copytree(self.directory, directory, ignore=shutil.ignore_patterns("lock", "*.part"))
        if forgetting is not None:
            described = directory / "server" / "federation.json"
            content = json.loads(described.read_text())
            content["config"]["forgetting"] = forgetting.model_dump(mode="json")
            described.write_text(json.dumps(content, indent=1))
        return LocalFederation(self.setting, directory, without=without)

    def _paused(self, paused: bool) -> None:
        self.engine.call(lambda state, _: (replace(state, paused=paused), None))

    def _join(self, shard: int) -> tuple[Session, Worker]:
        options = self.setting.options(shard)
        transport = LocalTransport(self.handlers, options.name)
        description = transport.describe()
        state = StateDir.of(description.federation_id, transport.name, self.directory / "clients")
        learner = prepare(options, description)
        worker = Worker(learner, state, transport, Display(), distiller=options.distiller)
        session = connect(
            transport,
            samples=worker.count(),
            holdout_samples=0 if options.distiller else learner.data.holdout_samples,
            unlabeled_samples=worker.unlabeled,
            manifest=learner.manifest,
            description=description,
            heartbeats=False,
        )
        return session, worker

    def _until(self, done: Callable[[State], bool], progress: Callable[[State], None]) -> None:
        """Gives every client its turn until the state says so."""
        while not done(self.state):
            before = self.state
            for shard, (session, worker) in list(self._clients.items()):
                work = session.step()
                if work is not None:
                    worker.do(work, session)
                if session.leave is not None:
                    del self._clients[shard]
                self.engine.settle()
            self.engine.tick()
            if self.state.version != before.version:
                progress(self.state)
            if self.state is before:
                raise PufError("the federation does not go on: nobody has work and nothing is awaited")


def _create(config: FederationConfig, directory: Path) -> None:
    from puf_common.models import build_any

    model = build_any(config.model, config.model_options, config.recipe.seed)
    manifest = manifest_of(model)
    create(directory, config, manifest, payload_of(model, manifest), time.time())
