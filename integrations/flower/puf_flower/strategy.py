"""The strategy: wraps a strategy that averages linearly, and adds unlearning rounds, recovery rounds and receipts.

    strategy = PufStrategy(FedAvg(), directory="puf-state", forget=[Forget(node=KEY, after_round=5)])

Ordinary rounds are those of the inner strategy, without nodes that were forgotten. Rounds of a request follow PUF's rules.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from logging import INFO, WARNING
from pathlib import Path
from typing import Any

import flwr
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.common.logger import log
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from puf_common.errors import InvalidUpdate, NotFound, NotNow, UsageError
from puf_embedded import arithmetic
from puf_embedded.federation import EmbeddedFederation, Update
from puf_embedded.measuring import DOSE as DOSE_JSON
from puf_embedded.measuring import TABLE
from puf_flower.asking import Questions
from puf_flower.linear import require_linear
from puf_flower.nodes import GridView, named_nodes, same_node
from puf_flower.wire import DOSE, NEGATE, RECORD, arrays_of, only_arrays, record_of, taken, without_errors
from puf_server.core.config import Forgetting
from puf_server.core.state.rounds import Assignment, Round, RoundKind
from puf_server.core.state.tickets import FiledBy, Flip, Mode, RequestForm, Strength


@dataclass(frozen=True)
class Forget:
    """A request by the operator. `node` is a public key, its fingerprint or a node id. None: the policy's choice."""

    node: str | int
    after_round: int = 0
    mode: str | None = None
    strength: str | None = None
    kappa: float | None = None
    eta_u: float | None = None
    epochs: int | None = None
    # "server": the strategy negates. The node then needs no mod.
    flip: str | None = None
    reference: str = ""

    def form(self) -> RequestForm:
        return RequestForm(
            key=f"operator-{self.node}"[:128],
            mode=Mode(self.mode) if self.mode else None,
            strength=Strength(self.strength) if self.strength else None,
            flip=Flip(self.flip) if self.flip else None,
            kappa=self.kappa,
            eta_u=self.eta_u,
            epochs=self.epochs,
            reference=self.reference,
            by=FiledBy.OPERATOR,
        )


class PufStrategy(Strategy):
    """Forgets nodes that ask, and those that `forget` names. `policy` has the strength, the mode and the stop rule."""

    def __init__(
        self,
        inner: Strategy,
        *,
        directory: str | Path = "puf-state",
        forget: Iterable[Forget] = (),
        policy: Forgetting | None = None,
        title: str = "flower federation",
        buffers: Sequence[str] | None = None,
        score_keys: tuple[str, str] = ("eval_acc", "eval_loss"),
    ) -> None:
        require_linear(inner)
        self.inner = inner
        software = f"puf_flower, flwr {flwr.__version__}"
        self.federation = EmbeddedFederation(Path(directory), title=title, software=software, policy=policy)
        self.receipts: list[Path] = []
        self._waiting = list(forget)
        self._buffer_names = buffers
        self._weight = str(getattr(inner, "weighted_by_key", "num-examples"))
        self._questions = Questions(self.federation, self._weight, score_keys)
        self._asking: set[str] = set()
        self._names: dict[int, str] = {}
        self._base: dict[str, Any] | None = None
        self._sent = 0

    def forget(self, request: Forget) -> None:
        """Adds a request. It is served after the round that it names, or after the present one."""
        self._waiting.append(request)

    def summary(self) -> None:
        log(INFO, "\t├──> PUF: requests: %s, kept out: %s", len(self._waiting), len(self.federation.kept_out))
        self.inner.summary()

    def start(self, grid: Grid, initial_arrays: ArrayRecord, *args: Any, **kwargs: Any) -> Result:
        """Runs the rounds. Says at the end which requests still need rounds."""
        self._questions.timeout = kwargs.get("timeout", 3600.0)
        result = super().start(grid, initial_arrays, *args, **kwargs)
        for ticket in self.federation.state.tickets.values():
            if ticket.open:
                log(WARNING, "request %s is %s: run more rounds from this model", ticket.id, ticket.state)
        for request in self._waiting:
            log(WARNING, "the request for node %s was not filed: that node took part in no round", request.node)
        return result

    # Training.

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        model = arrays_of(arrays)
        if self._base is None:
            self.federation.install(model)
        self._base = model
        self._look(grid)
        current = self.federation.round
        if current is not None and current.kind is RoundKind.UNLEARN:
            messages = self._unlearning(current, list(self.inner.configure_train(server_round, arrays, config, grid)))
        else:
            view = GridView(grid, self._allowed())
            self._require_enough(len(view.get_node_ids()))
            messages = list(self.inner.configure_train(server_round, arrays, config, view))  # type: ignore[arg-type]
            self.federation.begin([self._names[m.metadata.dst_node_id] for m in messages])
        self._sent = len(messages) * arithmetic.nbytes(model)
        return messages

    def _unlearning(self, current: Round, planned: list[Message]) -> list[Message]:
        """One message for each client of the round, with what the inner strategy says. Targets get their scale."""
        log(INFO, "PUF: unlearning round for %s", ", ".join(current.tickets))
        if not planned:
            raise UsageError("the inner strategy sent no message in an unlearning round; use fraction_train above 0")
        own = {m.metadata.dst_node_id: m for m in planned}
        ids = {name: node for node, name in self._names.items()}
        messages = []
        for a in current.assignments:
            node = ids[a.client]
            content = RecordDict(dict(own.get(node, planned[0]).content))
            if a.negated and a.flip is Flip.CLIENT:
                content[RECORD] = self._told(a)
            messages.append(Message(content, dst_node_id=node, message_type=MessageType.TRAIN))
        return messages

    def _told(self, a: Assignment) -> ConfigRecord:
        told: dict[str, Any] = {
            "task": NEGATE,
            "scale": a.scale,
            "epochs": max(1, int(a.epochs)),
            "buffers": sorted(self._buffers()),
        }
        if a.routine == "dose":
            assert a.unseen is not None
            options = {f"opt-{name}": value for name, value in a.options.items()}
            told |= {"task": DOSE, "unseen": TABLE.dump_json(a.unseen), **options}
        return ConfigRecord(told)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        current = self.federation.round
        assert current is not None
        by_client = {a.client: a for a in current.assignments}
        accepted: dict[str, Message] = {}
        for reply in without_errors(replies):
            assignment = by_client.get(self._names.get(reply.metadata.src_node_id, ""))
            if assignment is None:
                continue
            try:
                self._receive(assignment, reply)
                accepted[assignment.key] = reply
            except InvalidUpdate as error:
                log(WARNING, "PUF: the update of %s is left out: %s", assignment.client, error.message)
        closed = self.federation.close()
        if closed is None:
            log(WARNING, "PUF: round %s was given up; it is tried again", current.number)
            return None, None
        taking_part = [(a, accepted[a.key]) for a in closed.assignments if a.key in closed.received]
        if closed.denominator is not None:
            self._weigh(closed, taking_part)
        mean, metrics = self.inner.aggregate_train(server_round, [reply for _, reply in taking_part])
        if mean is None or not arithmetic.finite(arrays_of(mean)):
            self.federation.fail("the mean of the round is not finite or empty")
            return None, None
        self.federation.commit(arrays_of(mean), bytes_down=self._sent)
        return mean, metrics

    def _receive(self, a: Assignment, reply: Message) -> None:
        told = taken(reply.content)
        self._questions.heard(a.client, told)
        sent = arrays_of(reply.content[only_arrays(reply.content)])
        assert self._base is not None
        arithmetic.require_same(self._base, sent)
        if not arithmetic.finite(sent):
            raise InvalidUpdate("its arrays are not finite: training diverged")
        samples = next((int(m[self._weight]) for m in reply.content.metric_records.values() if self._weight in m), 0)
        scale = a.scale
        if a.negated and a.flip is Flip.CLIENT:
            if "scale" not in told:
                raise InvalidUpdate("the node did not negate it. Add PufMod to the ClientApp, or use flip='server'")
            scale = float(told["scale"])
        dose = DOSE_JSON.validate_json(told["dose"]) if "dose" in told else None
        self.federation.receive(a, Update(samples, arithmetic.nbytes(sent), scale, dose))
        if told.get("forget"):
            self._asking.add(a.client)

    def _weigh(self, closed: Round, taking_part: list[tuple[Assignment, Message]]) -> None:
        """Gives the replies of an unlearning round the weights of the plan, whatever mean the inner strategy forms.

        The plan divides by n of all assigned clients. The inner strategy divides by the samples that came. Buffers of
        targets do not count: they become the mean of the others.
        """
        assert closed.denominator is not None
        assert self._base is not None
        buffers, base = self._buffers(), self._base
        came = sum(a.samples for a, _ in taking_part)
        moved: dict[str, dict[str, Any]] = {}
        for a, reply in taking_part:
            on_server = a.scale if a.flip is Flip.SERVER or not a.negated else 1.0
            sent = arrays_of(reply.content[only_arrays(reply.content)])
            moved[a.key] = arithmetic.stretched(base, sent, on_server * came / closed.denominator, buffers)
            for metrics in reply.content.metric_records.values():
                if self._weight in metrics:
                    metrics[self._weight] = a.samples
        retained = [(float(a.samples), moved[a.key]) for a, _ in taking_part if not a.negated]
        for a, reply in taking_part:
            arrays = moved[a.key]
            if a.negated:
                arrays = arithmetic.with_buffers(arrays, base, retained, buffers)
            reply.content[only_arrays(reply.content)] = record_of(arrays)

    # Requests and measurements.

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        self._look(grid)
        ask = self._questions.about(arrays, config, grid, self._names)
        if self._due(server_round, grid):
            ask.survey()
            self._file(server_round, grid)
        written = self.federation.settle(ask.evaluate, ask.measure)
        for path in written:
            log(INFO, "PUF: written %s", path)
        self.receipts += written
        return self.inner.configure_evaluate(server_round, arrays, config, GridView(grid, self._allowed()))  # type: ignore[arg-type]

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        messages = list(replies)
        for message in messages:
            if not message.has_error():
                taken(message.content)
        return self.inner.aggregate_evaluate(server_round, messages)

    def _due(self, server_round: int, grid: Grid) -> bool:
        return bool(self._asking) or any(r.after_round <= server_round for r in self._waiting)

    def _file(self, server_round: int, grid: Grid) -> None:
        for client in sorted(self._asking):
            self._filed(client, RequestForm(key=f"node-{client}"))
        self._asking.clear()
        for request in [r for r in self._waiting if r.after_round <= server_round]:
            nodes = [n for n in grid.get_nodes() if same_node(request.node, n.node_id, bytes(n.public_key))]
            known = self._names.get(nodes[0].node_id, "") if nodes else str(request.node)
            if self._filed(known, request.form()):
                self._waiting.remove(request)

    def _filed(self, client: str, form: RequestForm) -> bool:
        """Whether the request needs no further attempt to file it."""
        try:
            ticket = self.federation.file(client, form)
        except NotFound:
            log(WARNING, "PUF: node %s took part in no round so far; its request waits", client)
            return False
        except NotNow as error:
            raise UsageError(f"the request of {client} cannot be served: {error.message}") from None
        log(INFO, "PUF: request %s of %s", ticket.id, client)
        return True

    # Nodes.

    def _look(self, grid: Grid) -> None:
        self._names = named_nodes(grid)
        self.federation.present(self._names.values())

    def _allowed(self) -> list[int]:
        return [node for node, name in self._names.items() if name not in self.federation.kept_out]

    def _require_enough(self, left: int) -> None:
        """Raises UsageError if the inner strategy would wait for nodes that were forgotten."""
        wanted = max(getattr(self.inner, "min_available_nodes", 0), getattr(self.inner, "min_train_nodes", 0))
        if left < wanted <= len(self._names):
            raise UsageError(
                f"{left} of {len(self._names)} nodes are left after a request to be forgotten, but the inner strategy waits "
                f"for {wanted}: lower its min_train_nodes and min_available_nodes"
            )

    def _buffers(self) -> frozenset[str]:
        assert self._base is not None
        return arithmetic.buffers_of(self._base, self._buffer_names)
