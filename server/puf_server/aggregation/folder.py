"""Computes the model of a closed round from its updates and writes the model file. Changes no state."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass

from puf_common.tensors.digests import hasher
from puf_common.tensors.model_file import write_header
from puf_server.aggregation.fold import Contribution, NotFinite, fold
from puf_server.aggregation.history_writer import read_history, write_history
from puf_server.aggregation.method_rules import combine
from puf_server.core import methods
from puf_server.core.methods.layers import outputs
from puf_server.core.state.rounds import HistoryRecord, Round
from puf_server.core.state.state import State
from puf_server.core.unlearning import history
from puf_server.failpoints import hit
from puf_server.storage.state_store import Store


@dataclass(frozen=True)
class FoldResult:
    """The model file that a fold has written, or the reason why it has written none."""

    round: Round
    digest: str = ""
    nbytes: int = 0
    blake3: str = ""
    failure: str = ""
    history: tuple[HistoryRecord, ...] = ()
    # The client whose update made the fold fail; empty where this is unknown.
    culprit: str = ""


class Folder:
    """Folds rounds of one federation. Safe to use from any thread; one fold at a time."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._config = store.config
        self._manifest = store.manifest

    def fold(self, state: State, current: Round) -> FoldResult:
        """Writes the model of `current`, a closed round of `state`, and the history that the method needs of it."""
        version = state.newest + 1
        sha, quick = hasher("sha256"), hasher("blake3")
        half, written = self._manifest.nbytes("model") // 2, 0
        hit("fold.start")
        file = self._store.models.new(version)

        def write(block: memoryview) -> None:
            nonlocal written
            sha.update(block)
            quick.update(block)
            file.write(block)
            if written <= half < written + len(block):
                hit("fold.middle")
            written += len(block)

        try:
            # The digest is known only at the end, so it is not in the file's header.
            file.write(write_header(self._manifest, {"version": str(version), "round": str(current.number)}))
            self._compute(state, current, write)
            hit("fold.end")
            self._store.models.publish(file, version, sha.hexdigest())
            kinds = history.wanted(state, self._config, current)
            records = write_history(self._store, state, current, kinds, server_lr=self._server_lr(current))
        except BaseException as error:
            file.discard()
            if not isinstance(error, NotFinite):
                raise
            failure = f"round {current.number}: {error.message}"
            return FoldResult(current, failure=failure, culprit=error.facts.get("client", ""))
        return FoldResult(
            current, sha.hexdigest(), self._manifest.nbytes("model"), blake3=quick.hexdigest(), history=records
        )

    def _server_lr(self, current: Round) -> float:
        return self._config.plan.server_lr if current.denominator is None else 1.0

    def _contributions(self, state: State, current: Round, stack: ExitStack) -> list[Contribution]:
        """The received updates, and the stored updates that the step adds."""
        found = [
            Contribution(
                client=assignment.client,
                part=assignment.part,
                samples=current.received[assignment.key].samples,
                source=stack.enter_context(self._store.spool.read(current, assignment.key)),
                scale=current.scale_of(assignment) if assignment.flip == "server" else 1.0,
                negated=assignment.negated,
                layout=outputs(self._manifest, assignment.outputs),
            )
            for assignment in current.assignments
            if assignment.key in current.received
        ]
        for key in current.step.combine.history:
            record = state.history[key]
            source = stack.enter_context(read_history(self._store, record))
            found.append(Contribution(client=record.client, part="main", samples=record.samples, source=source))
        return found

    def _compute(self, state: State, current: Round, write: Callable[[memoryview], object]) -> None:
        """Writes the blocks of the new model: by the weighted sum, or by the rule of the round's method."""
        rule, models = current.step.combine, self._store.models
        with ExitStack() as stack:
            base = stack.enter_context(models.read(state.models[current.base]))
            updates = self._contributions(state, current, stack)
            if rule.rule == "fold":
                lr, n = self._server_lr(current), current.denominator
                fold(self._manifest, base, updates, write, denominator=n, server_lr=lr)
                return
            method = methods.serving_round(self._config.forgetting, current)
            others = {name: stack.enter_context(models.read(state.models[v])) for name, v in rule.others.items()}
            combine(
                self._manifest,
                base,
                others,
                updates,
                write,
                lambda blocks: method.rule(rule, self._manifest, blocks),
                measure=method.measures,
            )
