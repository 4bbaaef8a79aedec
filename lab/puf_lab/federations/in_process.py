"""A federation in this process: the server's core, store and handlers and the clients' routines, without a network.

Nothing is reimplemented: the same sessions call the same handlers. Therefore the same seeds give the same weights as in
a federation of processes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Unpack

from puf_client.session.session import Session
from puf_client.state.directory import StateDirectory
from puf_client.terminal import Display
from puf_client.unlearning.measure_models import ModelMeasurer
from puf_client.unlearning.request import Plan as ForgetPlan
from puf_client.unlearning.request import file
from puf_client.worker.trainer import prepare
from puf_client.worker.worker import Worker
from puf_common.errors import PufError
from puf_common.v1 import federation_pb2 as fed
from puf_common.v1 import tickets_pb2 as tk
from puf_lab.federations.base import Spent, Strength
from puf_lab.federations.direct_transport import DirectTransport
from puf_lab.federations.state_directories import copy_state, create_server, leave_out
from puf_lab.spec.federation import FederationSpec, client_name
from puf_server.core import methods
from puf_server.core.config import Forgetting
from puf_server.core.state.state import State
from puf_server.core.state.tickets import Ticket
from puf_server.engine.engine import Engine
from puf_server.rpc.requests import Handlers
from puf_server.storage.state_store import Store

# Clients in this process send no heartbeats and are always present. A single remaining client continues alone.
_PLAN = {"absent_seconds": 1e9, "heartbeat_seconds": 5.0, "min_clients": 1}
# Targets measure nothing, except under adaptive strength, and where the policy of a request says so.
_FORGETTING = {"measure_seconds": 0.0}


class InProcessFederation:
    """Server and clients of one spec, driven step by step. The directory can be copied while it is closed."""

    def __init__(
        self,
        spec: FederationSpec,
        directory: Path,
        *,
        without: Collection[int] = (),
        without_samples: Mapping[int, Sequence[str]] | None = None,
        keep_models: int = 0,
    ) -> None:
        self.spec = spec
        self.directory = directory
        self._left_out = without_samples or {}
        shards = [i for i in range(spec.clients) if i not in without]
        if not (directory / "server").exists():
            plan = {**_PLAN, "keep_models": keep_models}
            forgetting = {} if spec.forgetting.strength == "auto" else _FORGETTING
            config = spec.server_config(clients=len(shards), plan=plan, forgetting=forgetting)
            create_server(spec, config, directory / "server")
        self.engine = Engine(Store.open(directory / "server"), time.time)
        self.handlers = Handlers(self.engine)
        self._clients: dict[int, tuple[Session, Worker]] = {}
        for shard in without:
            member = self.state.members.get(client_name(shard))
            if member is not None:
                self.handlers.leave(member.name, fed.LeaveRequest(session=member.session))
        for shard in (*shards, *range(spec.clients, spec.shards)):
            self._clients[shard] = self._join(shard)

    def __enter__(self) -> InProcessFederation:
        return self

    def __exit__(self, *_: object) -> None:
        self.engine.close()

    @property
    def state(self) -> State:
        return self.engine.state

    def train(self, tick: Callable[[int], None] = lambda rounds: None) -> None:
        self.run_until(lambda s: s.trained >= s.planned and s.round is None and s.evaluation is None, lambda _: tick(1))

    def extend(self, rounds: int) -> None:
        self.engine.call(lambda state, _: (replace(state, planned=state.trained + rounds), None))

    def forget(
        self,
        targets: Collection[int],
        *,
        mode: str | None = None,
        samples: Mapping[int, Sequence[str]] | None = None,
        progress: Callable[[State], None] = lambda state: None,
        **strength: Unpack[Strength],
    ) -> list[Ticket]:
        # Without the pause the first request would get a separate unlearning round.
        self._paused(True)
        ids = [
            self._file(shard, mode, tk.Strength(**strength), (samples or {}).get(shard, ()))
            for shard in sorted(targets)
        ]
        owners = {i: self._measurer(shard) for i, shard in zip(ids, sorted(targets), strict=True)}
        self._paused(False)

        def done(state: State) -> bool:
            for ticket_id, owner in owners.items() if self._measures else ():
                if state.tickets[ticket_id].applied is not None:
                    owner.measure(self.handlers.tickets.view(None, ticket_id))
            return not any(self.state.tickets[i].open for i in ids)

        self.run_until(done, progress)
        return [self.state.tickets[i] for i in ids]

    @property
    def _measures(self) -> bool:
        """Whether targets measure the models of their tickets. A policy that does not wait for them does not need it."""
        return self.engine.config.forgetting.measure_seconds > 0

    def _measurer(self, shard: int) -> ModelMeasurer:
        """Measures the models of a target, as `puf-client --unlearn` does."""
        transport = DirectTransport(self.handlers, client_name(shard))
        worker = self._clients[shard][1]
        return ModelMeasurer(transport, self._state_dir(transport), (worker.trainer, worker.samples), Display())

    def payload(self, version: int | None = None) -> bytearray:
        """The bytes of a model, withdrawn ones included. The default is the newest."""
        model = self.state.models[self.state.version if version is None else version]
        return self.engine.store.models.payload(model)

    def copy(
        self,
        directory: Path,
        *,
        without: Collection[int] = (),
        forgetting: Forgetting | None = None,
    ) -> InProcessFederation:
        """A second federation that continues from the present state of this one.

        `forgetting` replaces the policy of the copy. A method that needs history works if this federation stored it
        (`also_remember`). Clients accept the change, because the policy is not part of the recipe.
        """
        policy = forgetting.model_dump(mode="json") | _FORGETTING if forgetting else {}
        copy_state(self.directory, directory, policy)
        return InProcessFederation(self.spec, directory, without=without)

    @property
    def model_on_the_way(self) -> int:
        """The version of the newest model, or that of the last dose while doses are given."""
        job = self.state.job
        return job.working if job is not None and job.doses and job.working is not None else self.state.version

    def spent(self) -> Spent:
        return Spent.of((r.nbytes_up, r.nbytes_down, r.samples_processed) for r in self.state.records.values())

    def run_until(self, done: Callable[[State], bool], progress: Callable[[State], None] = lambda state: None) -> None:
        """Lets the clients work in turn until `done`. `progress` is called with the state of each new model version.

        The models between the doses of adaptive strength count, too.
        """
        seen = self.model_on_the_way
        while not done(self.state):
            before = self.state
            for shard, (session, worker) in list(self._clients.items()):
                work = session.step()
                if work is not None:
                    worker.do(work, session)
                if session.leave is not None:
                    del self._clients[shard]
                self.engine.fold_ready()
                if self.model_on_the_way != seen:
                    seen = self.model_on_the_way
                    progress(self.state)
            self.engine.tick()
            if self.state is before:
                raise PufError("the federation makes no progress: no client has work, and the server awaits nothing")

    def _file(self, shard: int, mode: str | None, strength: tk.Strength, samples: Sequence[str]) -> str:
        """Files the request of one client and returns the ticket's id."""
        request = tk.UnlearningRequest(
            request_key=f"whole-{shard}",
            scope=tk.SCOPE_CLIENT,
            mode=f"MODE_{(mode or 'unspecified').upper()}",
            strength=strength,
        )
        transport = DirectTransport(self.handlers, client_name(shard))
        state = self._state_dir(transport)
        if samples:
            request.scope = tk.SCOPE_SAMPLES
            request.request_key = state.request_key(samples)
            request.forget_samples = len(samples)
            request.retain_samples = self._clients[shard][1].samples.count() - len(samples)
        return file(ForgetPlan(request, tuple(samples)), state, transport).id

    def _paused(self, paused: bool) -> None:
        self.engine.call(lambda state, _: (replace(state, paused=paused), None))

    def _state_dir(self, transport: DirectTransport) -> StateDirectory:
        return StateDirectory.of(transport.describe().federation_id, transport.name, self.directory / "clients")

    @property
    def _own_routines(self) -> list[str]:
        """Routines of the user's code that the method names. The user's experiment may load the user's code."""
        return list(methods.method_of(self.engine.config.forgetting).routines)

    def _join(self, shard: int) -> tuple[Session, Worker]:
        options = self.spec.client_options(shard).model_copy(update={"routine": self._own_routines})
        transport = DirectTransport(self.handlers, options.name)
        description = transport.describe()
        state = self._state_dir(transport)
        if shard in self._left_out:
            leave_out(state, self._left_out[shard])
        trainer = prepare(options, description)
        worker = Worker(trainer, state, transport, Display(), distiller=options.distiller)
        return worker.join(description, heartbeats=False), worker
