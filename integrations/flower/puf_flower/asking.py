"""Questions to nodes between rounds: hold-outs of the retained nodes, and what a target measures of its own data.

Nodes whose mod can measure answer themselves. Of other nodes, the app's evaluation gives score and loss.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid

from puf_common.errors import PufError
from puf_embedded.federation import EmbeddedFederation, Measure
from puf_embedded.measuring import MEASUREMENT, SUMS, TABLE
from puf_flower.wire import EVALUATE, MEASURE, RECORD, taken, without_errors
from puf_server.core import validation
from puf_server.core.state.measurements import Evaluation, Measurement, Sums

ARRAYS, CONFIG = "arrays", "config"


@dataclass
class Questions:
    """What is known about the nodes, and how long to wait for their answers."""

    federation: EmbeddedFederation
    weight: str
    score_keys: tuple[str, str]
    timeout: float = 3600.0
    # Nodes whose mod said that it can measure.
    measuring: set[str] = field(default_factory=set)

    def heard(self, client: str, told: Mapping[str, Any]) -> None:
        if told.get("measures"):
            self.measuring.add(client)

    def about(self, arrays: ArrayRecord, config: ConfigRecord, grid: Grid, names: Mapping[int, str]) -> ModelQuestions:
        return ModelQuestions(self, arrays, config, grid, {name: node for node, name in names.items()})


@dataclass(frozen=True)
class ModelQuestions:
    """Questions about one model."""

    known: Questions
    arrays: ArrayRecord
    config: ConfigRecord
    grid: Grid
    nodes: Mapping[str, int]

    def survey(self) -> None:
        """Asks every known node how many samples it holds out."""
        federation = self.known.federation
        clients = [c for c in self.nodes if federation.knows(c) and c not in federation.kept_out]
        found = self._sums(clients)
        for client in clients:
            samples = found[client].samples if client in found else 0
            federation.holds_out(client, samples, adapts=client in self.known.measuring)

    def evaluate(self, asked: Evaluation) -> dict[str, Sums]:
        return self._sums(asked.asked)

    def measure(self, asked: Sequence[Measure]) -> dict[str, Measurement]:
        """Measurements by ticket, of the targets that are there and can measure."""
        wanted = {m.client: m for m in asked if m.client in self.known.measuring}

        def told(client: str) -> dict[str, Any]:
            unseen = wanted[client].unseen
            return {"task": MEASURE, "unseen": TABLE.dump_json(unseen) if unseen else b""}

        answers = self._ask(wanted, MessageType.TRAIN, told)
        found = {c: _read(MEASUREMENT, taken(content).get("measurement")) for c, content in answers.items()}
        return {wanted[client].ticket: value for client, value in found.items() if value is not None}

    def _sums(self, clients: Iterable[str]) -> dict[str, Sums]:
        able = [c for c in clients if c in self.known.measuring]
        others = [c for c in clients if c not in self.known.measuring]
        answers = self._ask(able, MessageType.TRAIN, lambda _: {"task": EVALUATE})
        found = {c: _read(SUMS, taken(content).get("sums")) for c, content in answers.items()}
        evaluated = self._ask(others, MessageType.EVALUATE, None)
        found |= {c: self._from_metrics(content) for c, content in evaluated.items()}
        return {client: sums for client, sums in found.items() if sums is not None}

    def _from_metrics(self, content: RecordDict) -> Sums | None:
        """Sums of the app's own evaluation; None if it does not report score and loss."""
        score, loss = self.known.score_keys
        for metrics in content.metric_records.values():
            if all(key in metrics for key in (self.known.weight, score, loss)):
                samples = int(metrics[self.known.weight])
                try:
                    return validation.sums(samples, float(metrics[loss]) * samples, float(metrics[score]) * samples, ())
                except PufError:
                    return None
        return None

    def _ask(
        self, clients: Iterable[str], kind: str, told: Callable[[str], dict[str, Any]] | None
    ) -> dict[str, RecordDict]:
        names = {self.nodes[c]: c for c in clients if c in self.nodes}
        messages = []
        for node, client in names.items():
            content = RecordDict({ARRAYS: self.arrays, CONFIG: self.config})
            if told is not None:
                content[RECORD] = ConfigRecord(told(client))
            messages.append(Message(content, dst_node_id=node, message_type=kind))
        if not messages:
            return {}
        answers = self.grid.send_and_receive(messages, timeout=self.known.timeout)
        return {
            names[m.metadata.src_node_id]: m.content for m in without_errors(answers) if m.metadata.src_node_id in names
        }


def _read(adapter: Any, written: object) -> Any:
    """The value, checked; None if there is none or it is not valid."""
    if not isinstance(written, bytes):
        return None
    try:
        return adapter.validate_json(written)
    except (ValueError, PufError):
        return None
