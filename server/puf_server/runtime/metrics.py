"""The federation as numbers for Prometheus.

Most values are computed from the state at every scrape, so they survive restarts and cost nothing in between. No label
contains a client's name or a ticket's id: readers of dashboards see how many clients there are, not which.
"""

from __future__ import annotations

import math
import threading
import time
from collections import Counter as Tally
from collections.abc import Iterator, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric

from puf_common.errors import PufError
from puf_common.logging import get_logger
from puf_common.receipts.evidence import Verdict
from puf_common.tensors.manifest import MODEL
from puf_common.version import VERSION
from puf_server.aggregation.method_rules import lengths
from puf_server.core import roster, scheduler
from puf_server.core.config import FederationConfig
from puf_server.core.state.members import MemberStatus
from puf_server.core.state.models import ModelVersion
from puf_server.core.state.presence import Presence
from puf_server.core.state.rounds import RoundKind
from puf_server.core.state.state import State
from puf_server.core.state.tickets import TicketState
from puf_server.core.unlearning.request_verdict import verdict
from puf_server.engine.engine import Engine
from puf_server.engine.troubles import Trouble
from puf_server.rpc.requests import Handlers
from puf_server.runtime.fold_loop import RoundTimes

PHASES = ("waiting", "training", "unlearning", "recovering", "idle", "paused", "stopping")
# A round takes between a second and days.
_BUCKETS = (0.1, 0.5, 1, 5, 15, 60, 300, 900, 3600, 14400, 86400)
_OPEN = (TicketState.PENDING, TicketState.SCHEDULED, TicketState.APPLIED, TicketState.RECOVERING)

log = get_logger(__name__)


class Metrics:
    """The registry of one federation. The server adds to the counters; all other values come from the state."""

    def __init__(self, handlers: Handlers) -> None:
        self.registry = CollectorRegistry()
        self._refused = Counter(
            "puf_updates_refused", "Refused updates, by the reason of the error", ["reason"], registry=self.registry
        )
        self._phase_seconds = Histogram(
            "puf_round_phase_seconds",
            "Duration of the phases of a round: collecting updates, folding them, committing the sum",
            ["kind", "phase"],
            registry=self.registry,
            buckets=_BUCKETS,
        )
        started = Gauge("puf_start_time_seconds", "When this process began to serve", registry=self.registry)
        started.set(time.time())
        self.registry.register(_StateCollector(handlers))

    def update_refused(self, reason: str) -> None:
        self._refused.labels(reason=reason).inc()

    def round_took(self, times: RoundTimes) -> None:
        for phase in ("collecting", "folding", "committing"):
            self._phase_seconds.labels(kind=times.round.kind, phase=phase).observe(getattr(times, phase))


class _StateCollector:
    """Computes the metric families from the state at every scrape."""

    def __init__(self, handlers: Handlers) -> None:
        self._handlers = handlers
        self._engine = handlers.engine
        self._norm = _ModelNorm(handlers.engine)

    def describe(self) -> list[Metric]:
        """Empty, so that registration does not read the state."""
        return []

    def collect(self) -> Iterator[Metric]:
        state, now = self._engine.state, self._engine.clock()
        config = self._engine.config
        info = {"federation": config.id, "title": config.title, "model": config.model, "version": VERSION}
        yield InfoMetricFamily("puf_federation", "Which federation this is", value=info)
        yield from _rounds(state, now)
        yield from _clients(state, self._engine.presence, config, now)
        yield from _tickets(state, now)
        yield from self._model(state)
        shown = self._engine.troubles.open()
        yield _family("puf_trouble", "1 for what is retried without success", "kind", {k: k in shown for k in Trouble})
        transferred = {"up": self._handlers.rates.bytes_received, "down": self._handlers.rates.bytes_sent}
        yield _family("puf_bytes", "Tensor bytes since the process began", "direction", transferred, counts=True)

    def _model(self, state: State) -> Iterator[Metric]:
        yield _gauge("puf_model_version", "The newest model version", state.version)
        norm = self._norm.of(state.models[state.version])
        if norm is not None:
            yield _gauge("puf_model_norm", "Euclidean norm of the newest model's parameters", norm)
        scored = [m for m in state.models.values() if m.score is not None]
        newest = max(scored, key=lambda m: m.version, default=None)
        if newest is not None and newest.score is not None:
            yield _gauge("puf_accuracy", "Newest score on the clients' hold-outs", newest.score.score)
            yield _gauge("puf_loss", "The loss that belongs to puf_accuracy", newest.score.loss)
            yield _gauge("puf_accuracy_version", "The model version that belongs to puf_accuracy", newest.version)


class _ModelNorm:
    """The Euclidean norm of a model's parameters, computed once per version, block by block."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._lock = threading.Lock()
        self._known: tuple[int, float] | None = None

    def of(self, model: ModelVersion) -> float | None:
        """The norm; None if the file cannot be read. A version can be deleted while it is read."""
        with self._lock:
            if self._known is None or self._known[0] != model.version:
                try:
                    with self._engine.store.models.read(model) as source:
                        norms = lengths(source, self._engine.manifest.ranges(MODEL))
                    self._known = (model.version, math.hypot(*norms))
                except (OSError, PufError) as error:
                    log.warning("model norm not computed", version=model.version, error=str(error))
                    return None
            return self._known[1]


def _rounds(state: State, now: float) -> Iterator[Metric]:
    committed = Tally(r.kind.value for r in state.records.values())
    per_kind = {kind.value: committed[kind.value] for kind in RoundKind}
    yield _family("puf_rounds_committed", "Rounds committed, by kind", "kind", per_kind, counts=True)
    yield _gauge("puf_round", "The last committed round", state.number)
    yield _gauge("puf_training_rounds_planned", "Training rounds in the plan", state.planned)
    yield _gauge("puf_training_rounds_done", "Training rounds committed", state.trained)
    phase = scheduler.phase(state)
    yield _family("puf_phase", "1 for the current phase", "phase", {p: p == phase for p in PHASES})
    yield _gauge("puf_halted", "1 if the federation halted and waits for the operator", bool(state.halted))
    newest = max((m.created_at for m in state.models.values()), default=0.0)
    yield _gauge("puf_progress_timestamp_seconds", "When the newest model was made", newest)
    current = state.round
    expected, received = (len(current.assignments), len(current.received)) if current else (0, 0)
    yield _gauge("puf_round_expected_updates", "Updates that the open round expects", expected)
    yield _gauge("puf_round_received_updates", "Updates that the open round has received", received)
    age = now - current.opened_at if current else 0
    yield _gauge("puf_round_open_seconds", "Age of the open round; 0 if none is open", age)


def _clients(state: State, presence: Presence, config: FederationConfig, now: float) -> Iterator[Metric]:
    counts = client_states(state, presence, config, now)
    states = ("alive", "absent", "leaving", "forgotten", "readmitted")
    yield _family("puf_clients", "Clients on the roster, by state", "state", {s: counts[s] for s in states})
    required = roster.required(state, config)
    yield _gauge("puf_clients_required", "Clients that must be alive for a round", required)
    yield _gauge("puf_shards", "Parts of the data that the server leases", config.plan.shards)
    yield _gauge("puf_shards_leased", "Parts that are leased to a client", len(state.leases))


def client_states(state: State, presence: Presence, config: FederationConfig, now: float) -> Tally[str]:
    """How many clients are alive, absent, leaving, forgotten or readmitted. Reads the tickets once."""
    leaving = state.kept_out()
    counts: Tally[str] = Tally()
    for name, member in state.members.items():
        if member.status is not MemberStatus.ACTIVE:
            counts[member.status.value] += 1
        elif name in leaving:
            counts["leaving"] += 1
        else:
            counts["alive" if roster.worker_alive(presence, name, config, now) else "absent"] += 1
    return counts


def _tickets(state: State, now: float) -> Iterator[Metric]:
    counts = Tally(t.state for t in state.tickets.values())
    by_state = {s.value: counts[s] for s in TicketState}
    yield _family("puf_tickets", "Requests to be forgotten, by state", "state", by_state)
    judged = Tally(found for t in state.tickets.values() if (found := verdict(t)) is not None)
    by_verdict = {v.value: judged[v] for v in Verdict}
    about = "Completed requests whose owner compared the models with unseen data, by verdict"
    yield _family("puf_tickets_judged", about, "verdict", by_verdict, counts=True)
    ages: dict[str, float] = {s.value: 0.0 for s in TicketState if s in _OPEN}
    for ticket in state.tickets.values():
        if ticket.open:
            ages[ticket.state.value] = max(ages[ticket.state.value], now - ticket.request.received_at)
    yield _family("puf_ticket_age_seconds", "Age of the oldest open request, by state", "state", ages)
    left = min((t.deadline_at - now for t in state.tickets.values() if t.waiting), default=math.inf)
    yield _gauge("puf_ticket_deadline_seconds", "Seconds to the first deadline of a request not applied yet", left)


def _gauge(name: str, about: str, value: float) -> Metric:
    return GaugeMetricFamily(name, about, value=float(value))


def _family(name: str, about: str, label: str, values: Mapping[str, float], *, counts: bool = False) -> Metric:
    family = CounterMetricFamily if counts else GaugeMetricFamily
    made = family(name, about, labels=[label])
    for key, value in values.items():
        made.add_metric([key], float(value))
    return made
