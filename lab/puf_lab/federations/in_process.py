"""A federation in this process: the server's core, store and handlers and the clients' routines, without a network.

Nothing is reimplemented: the same sessions call the same handlers. Therefore the same seeds give the same weights as in
a federation of processes.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Unpack

from puf_client.data import load_data
from puf_client.session.session import Session
from puf_client.state.directory import StateDirectory
from puf_client.terminal import Display
from puf_client.unlearning.measure_models import ModelMeasurer
from puf_client.unlearning.request import Plan as ForgetPlan
from puf_client.unlearning.request import file
from puf_client.worker.trainer import Trainer, context_of, prepare
from puf_client.worker.worker import Worker
from puf_common.errors import PufError
from puf_common.v1 import federation_pb2 as fed
from puf_common.v1 import tickets_pb2 as tk
from puf_lab.federations.base import Spent, Strength
from puf_lab.federations.direct_transport import DirectTransport, SharedModels
from puf_lab.federations.state_directories import copy_state, create_server, leave_out
from puf_lab.spec.federation import FederationSpec, client_name
from puf_server.core import methods, rounds
from puf_server.core.config import Forgetting
from puf_server.core.state.state import State
from puf_server.core.state.tickets import Ticket
from puf_server.engine.engine import Engine
from puf_server.rpc.requests import Handlers
from puf_server.storage.durable import DISK, UNSYNCED
from puf_server.storage.state_store import Store

# Clients in this process send no heartbeats and are always present. A single remaining client continues alone.
_PLAN = {"absent_seconds": 1e9, "heartbeat_seconds": 5.0, "min_clients": 1}
# Targets measure nothing, except under adaptive strength, and where the policy of a request says so.
_FORGETTING = {"measure_seconds": 0.0}
# Clients whose data stays in memory. Others load it again when they are asked.
_WORKERS_KEPT = 128


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
        self._files = DISK if spec.durability == "full" else UNSYNCED
        shards = [i for i in range(spec.clients) if i not in without]
        if not (directory / "server").exists():
            plan = {**_PLAN, "keep_models": keep_models}
            forgetting = {} if spec.forgetting.strength == "auto" else _FORGETTING
            config = spec.server_config(clients=len(shards), plan=plan, forgetting=forgetting)
            create_server(spec, config, directory / "server", self._files)
        self.engine = Engine(Store.open(directory / "server", self._files), time.time)
        self.handlers = Handlers(self.engine)
        self._models = SharedModels(self.handlers)
        self._trainer: Trainer | None = None
        self._display = Display()
        self._sessions: dict[int, Session] = {}
        # The least recently used first.
        self._workers: OrderedDict[int, Worker] = OrderedDict()
        # Clients look for changes of their own samples when the federation opens and when a request was filed.
        self._look = True
        self._description = self.handlers.describe(fed.DescribeRequest())
        for shard in without:
            member = self.state.members.get(client_name(shard))
            if member is not None:
                self.handlers.leave(member.name, fed.LeaveRequest(session=member.session))
        for shard in (*shards, *range(spec.clients, spec.shards)):
            self._sessions[shard] = self._join(shard)

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
        self._look = True

        def done(state: State) -> bool:
            for ticket_id, owner in owners.items() if self._measures else ():
                if state.tickets[ticket_id].applied is not None:
                    owner.measure(self.handlers.tickets.view(None, ticket_id))
            return not any(self.state.tickets[i].open for i in ids)

        self.run_until(done, progress)
        return [self.state.tickets[i] for i in ids]

    def recover(self, *, further: bool) -> None:
        """Lets recovery go on, whatever the service's stop rule says, or ends it after the newest model."""

        def change(state: State, now: float) -> tuple[State, None]:
            recovery = state.recovery
            if recovery is None:
                return state, None
            if further:
                return replace(state, recovery=replace(recovery, at_least=recovery.rounds + 2)), None
            # The next round has been opened, but no client has been asked.
            state = rounds.abandon(state, now, "the experiment's stop rule applies")
            return replace(state, recovery=replace(recovery, at_least=0, at_most=recovery.rounds)), None

        self.engine.call(change)

    @property
    def _measures(self) -> bool:
        """Whether targets measure the models of their tickets. A policy that does not wait for them does not need it."""
        return self.engine.config.forgetting.measure_seconds > 0

    def _measurer(self, shard: int) -> ModelMeasurer:
        """Measures the models of a target, as `puf-client --unlearn` does."""
        transport = self._transport(client_name(shard))
        worker = self._worker(shard)
        return ModelMeasurer(transport, self._state_dir(transport), (worker.trainer, worker.samples), self._display)

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
            for shard in self._asked():
                self._step(shard)
                self.engine.fold_ready()
                if self.model_on_the_way != seen:
                    seen = self.model_on_the_way
                    progress(self.state)
            self.engine.tick()
            if self.state is before:
                raise PufError("the federation makes no progress: no client has work, and the server awaits nothing")

    def _asked(self) -> list[int]:
        """The clients of which the server waits for something; all where it waits for none, or a request is new."""
        state = self.state
        names = {a.client for a in state.round.missing} if state.round is not None else set()
        names |= set(state.evaluation.missing) if state.evaluation is not None else set()
        shards = [shard for shard, session in self._sessions.items() if session.transport.name in names]
        look, self._look = self._look, False
        return list(self._sessions) if look or not shards else shards

    def _step(self, shard: int) -> None:
        """Lets a client do its next work, if there is any."""
        session = self._sessions[shard]
        work = session.step()
        if work is not None:
            self._worker(shard).do(work, session)
        # The memory of a simulation must not grow with the number of clients.
        session.drop_models()
        session.drop_updates()
        if session.leave is not None:
            del self._sessions[shard]
            self._workers.pop(shard, None)

    def _file(self, shard: int, mode: str | None, strength: tk.Strength, samples: Sequence[str]) -> str:
        """Files the request of one client and returns the ticket's id."""
        request = tk.UnlearningRequest(
            request_key=f"whole-{shard}",
            scope=tk.SCOPE_CLIENT,
            mode=f"MODE_{(mode or 'unspecified').upper()}",
            strength=strength,
        )
        transport = self._transport(client_name(shard))
        state = self._state_dir(transport)
        if samples:
            request.scope = tk.SCOPE_SAMPLES
            request.request_key = state.request_key(samples)
            request.forget_samples = len(samples)
            request.retain_samples = self._worker(shard).samples.count() - len(samples)
        return file(ForgetPlan(request, tuple(samples)), state, transport).id

    def _paused(self, paused: bool) -> None:
        self.engine.call(lambda state, _: (replace(state, paused=paused), None))

    def _state_dir(self, transport: DirectTransport) -> StateDirectory:
        return StateDirectory.of(self.engine.config.id, transport.name, self.directory / "clients", self._files)

    @property
    def _own_routines(self) -> list[str]:
        """Routines of the user's code that the method names. The user's experiment may load the user's code."""
        return list(methods.method_of(self.engine.config.forgetting).routines)

    def _transport(self, name: str) -> DirectTransport:
        return DirectTransport(self.handlers, name, self._models)

    def _join(self, shard: int) -> Session:
        if shard in self._left_out:
            leave_out(self._state_dir(self._transport(client_name(shard))), self._left_out[shard])
        return self._worker(shard).join(self._description, heartbeats=False)

    def _worker(self, shard: int) -> Worker:
        """The client's data and the model that all clients share. Data that was not used for long is loaded again."""
        if shard not in self._workers:
            options = self.spec.client_options(shard).model_copy(update={"routine": self._own_routines})
            transport = self._transport(options.name)
            if self._trainer is None:
                # Each client that is kept has an equal share of the device, for training data and hold-out.
                share = self.spec.data_bytes // (2 * min(self.spec.shards, _WORKERS_KEPT))
                self._trainer = replace(prepare(options, self._description), resident_bytes=share)
            trainer = self._trainer.with_data(load_data(options.data, context_of(options)))
            state = self._state_dir(transport)
            self._workers[shard] = Worker(trainer, state, transport, self._display, distiller=options.distiller)
            while len(self._workers) > _WORKERS_KEPT:
                self._workers.popitem(last=False)
        self._workers.move_to_end(shard)
        return self._workers[shard]
