"""What Prometheus reads: the federation's state as numbers, and counts of what happened since the process began.

Most of it is read off the state when somebody asks, so that it survives restarts and costs nothing in between. No label
carries a client's name or a ticket's id: whoever may look at dashboards learns how many, not who.
"""

from __future__ import annotations

import math
import threading
import time
from collections import Counter as Tally
from collections.abc import Iterator, Mapping
from wsgiref.simple_server import WSGIServer

import numpy as np
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric

from puf_common.errors import PufError, UsageError
from puf_common.logging import get_logger
from puf_common.network.addresses import parse_address
from puf_common.tensors.manifest import MODEL
from puf_common.version import VERSION
from puf_server.core import roster, scheduler
from puf_server.core.state.members import MemberStatus
from puf_server.core.state.models import ModelVersion
from puf_server.core.state.rounds import RoundKind
from puf_server.core.state.state import State
from puf_server.core.state.tickets import TicketState
from puf_server.engine.engine import Engine
from puf_server.rpc.requests import Handlers

__all__ = ["Listener", "Metrics", "ModelNorm"]

PHASES = ("waiting", "training", "unlearning", "recovering", "idle", "paused", "stopping")
# A round takes between a second and days.
_BUCKETS = (0.1, 0.5, 1, 5, 15, 60, 300, 900, 3600, 14400, 86400)

log = get_logger(__name__)


class Metrics:
    """One federation's registry. `refused` and `phase_seconds` are written by who serves, the rest is read off the state."""

    def __init__(self, handlers: Handlers) -> None:
        self.registry = CollectorRegistry()
        self.refused = Counter(
            "puf_updates_refused",
            "Updates that were not taken, by the error's reason",
            ["reason"],
            registry=self.registry,
        )
        self.phase_seconds = Histogram(
            "puf_round_phase_seconds",
            "How long rounds take: collecting updates, folding them, committing the sum",
            ["kind", "phase"],
            registry=self.registry,
            buckets=_BUCKETS,
        )
        started = Gauge("puf_start_time_seconds", "When this process began to serve", registry=self.registry)
        started.set(time.time())
        self.registry.register(_Reading(handlers))


class _Reading:
    """Turns the state into families whenever it is asked."""

    def __init__(self, handlers: Handlers) -> None:
        self._handlers = handlers
        self._engine = handlers.engine
        self._norm = ModelNorm(handlers.engine)

    def describe(self) -> list[Metric]:
        """Nothing to check names against: reading must not begin before the state is there."""
        return []

    def collect(self) -> Iterator[Metric]:
        state, now = self._engine.state, self._engine.clock()
        config = self._engine.config
        info = {"federation": config.id, "title": config.title, "model": config.model, "version": VERSION}
        yield InfoMetricFamily("puf_federation", "Which federation this is", value=info)
        yield from self._rounds(state, now)
        yield from self._clients(state, now)
        yield from _tickets(state, now)
        yield from self._model(state)
        received, sent = self._handlers.bytes_received, self._handlers.bytes_sent
        yield _family(
            "puf_bytes",
            "Tensor bytes since the process began",
            "direction",
            {"up": received, "down": sent},
            counts=True,
        )

    def _rounds(self, state: State, now: float) -> Iterator[Metric]:
        committed = Tally(r.kind.value for r in state.records.values())
        per_kind = {kind.value: committed[kind.value] for kind in RoundKind}
        yield _family("puf_rounds_committed", "Rounds committed, by kind", "kind", per_kind, counts=True)
        yield _gauge("puf_round", "The last committed round", state.number)
        yield _gauge("puf_training_rounds_planned", "Training rounds in the plan", state.planned)
        yield _gauge("puf_training_rounds_done", "Training rounds committed", state.trained)
        phase = scheduler.phase(state)
        yield _family("puf_phase", "1 for what the federation is doing", "phase", {p: p == phase for p in PHASES})
        yield _gauge(
            "puf_halted", "1 where the federation stopped by itself and waits for the operator", bool(state.halted)
        )
        newest = max((m.created_at for m in state.models.values()), default=0.0)
        yield _gauge("puf_progress_timestamp_seconds", "When the newest model was made", newest)
        current = state.round
        yield _gauge(
            "puf_round_expected_updates",
            "Updates the round under way waits for in all",
            len(current.assignments) if current else 0,
        )
        yield _gauge("puf_round_received_updates", "Updates it has", len(current.received) if current else 0)
        yield _gauge(
            "puf_round_open_seconds",
            "Age of the round under way; 0 where none is",
            now - current.opened_at if current else 0,
        )

    def _clients(self, state: State, now: float) -> Iterator[Metric]:
        counts = Tally(_client_state(name, state, self._engine, now) for name in state.members)
        states = ("alive", "absent", "leaving", "forgotten", "readmitted")
        yield _family("puf_clients", "Clients on the roster, by state", "state", {s: counts[s] for s in states})
        yield _gauge(
            "puf_clients_required",
            "Clients that must be alive for a round",
            roster.required(state, self._engine.config),
        )
        yield _gauge("puf_shards", "Parts of the data that the server leases", self._engine.config.plan.shards)
        yield _gauge("puf_shards_leased", "Of these, leased to a name", len(state.leases))

    def _model(self, state: State) -> Iterator[Metric]:
        yield _gauge("puf_model_version", "The newest model version", state.version)
        norm = self._norm.of(state.models[state.version])
        if norm is not None:
            yield _gauge("puf_model_norm", "Euclidean norm of the newest model's parameters", norm)
        scored = [m for m in state.models.values() if m.score is not None]
        newest = max(scored, key=lambda m: m.version, default=None)
        if newest is not None and newest.score is not None:
            yield _gauge("puf_accuracy", "Newest score on the clients' hold-outs", newest.score.score)
            yield _gauge("puf_loss", "The loss that goes with it", newest.score.loss)
            yield _gauge("puf_accuracy_version", "The model version it belongs to", newest.version)


class ModelNorm:
    """The norm of a model's parameters, computed once per version, block by block."""

    _BLOCK = 1 << 20

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._lock = threading.Lock()
        self._known: tuple[int, float] | None = None

    def of(self, model: ModelVersion) -> float | None:
        """None where the file is gone: it may be swept away while it is read."""
        with self._lock:
            if self._known is None or self._known[0] != model.version:
                try:
                    self._known = (model.version, math.sqrt(self._squares(model)))
                except (OSError, PufError) as error:
                    log.warning("norm not computed", version=model.version, error=str(error))
                    return None
            return self._known[1]

    def _squares(self, model: ModelVersion) -> float:
        total = 0.0
        with self._engine.store.model_source(model) as source:
            for slot in self._engine.manifest.slots(MODEL):
                if slot.spec.role != "parameter":
                    continue
                for start in range(0, slot.nbytes, self._BLOCK):
                    block = bytearray(min(self._BLOCK, slot.nbytes - start))
                    source.read_into(slot.offset + start, memoryview(block))
                    values = np.frombuffer(block, slot.dtype).astype(np.float64)
                    total += float(values @ values)
        return total


class Listener:
    """`/metrics` over HTTP on an address of its own, so that who scrapes reaches nothing else."""

    def __init__(self, metrics: Metrics, address: str) -> None:
        host, port = parse_address(address, "--metrics", free_port=True)
        try:
            server, thread = start_http_server(port, host, metrics.registry)
        except OSError as error:
            raise UsageError(f"cannot listen on {address} for --metrics: {error.strerror}") from None
        self._server: WSGIServer = server
        self._thread = thread
        self.port: int = server.server_port

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _client_state(name: str, state: State, engine: Engine, now: float) -> str:
    member = state.members[name]
    if member.status is not MemberStatus.ACTIVE:
        return member.status.value
    if name in state.kept_out():
        return "leaving"
    return "alive" if roster.worker_alive(engine.presence, name, engine.config, now) else "absent"


def _tickets(state: State, now: float) -> Iterator[Metric]:
    counts = Tally(t.state for t in state.tickets.values())
    yield _family(
        "puf_tickets", "Requests to be forgotten, by state", "state", {s.value: counts[s] for s in TicketState}
    )
    ages: dict[str, float] = {s.value: 0.0 for s in TicketState if s in _OPEN}
    for ticket in state.tickets.values():
        if ticket.open:
            ages[ticket.state.value] = max(ages[ticket.state.value], now - ticket.received_at)
    yield _family("puf_ticket_age_seconds", "Age of the oldest open request, by state", "state", ages)
    left = [t.deadline_at - now for t in state.tickets.values() if t.waiting]
    yield _gauge(
        "puf_ticket_deadline_seconds",
        "Until the first deadline of a request not applied yet",
        min(left, default=math.inf),
    )


_OPEN = (TicketState.PENDING, TicketState.SCHEDULED, TicketState.APPLIED, TicketState.RECOVERING)


def _gauge(name: str, about: str, value: float) -> Metric:
    return GaugeMetricFamily(name, about, value=float(value))


def _family(name: str, about: str, label: str, values: Mapping[str, float], *, counts: bool = False) -> Metric:
    family = CounterMetricFamily if counts else GaugeMetricFamily
    made = family(name, about, labels=[label])
    for key, value in values.items():
        made.add_metric([key], float(value))
    return made
