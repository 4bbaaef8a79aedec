"""A folder that sums exact books instead of tensors."""

from __future__ import annotations

from puf_common.tensors.digests import digest
from puf_common.tensors.manifest import MODEL
from puf_server.aggregation.folder import FoldResult
from puf_server.aggregation.verified import DamagedFile
from puf_server.core.state.rounds import HistoryRecord, Round
from puf_server.core.state.state import State
from puf_server.core.unlearning import history
from puf_server.storage.layout import history_name, spool_name
from tests.sim.disk import SimStore, file_name
from tests.sim.weights import MANIFEST, folded


class SimFolder:
    """Injected into the real engine."""

    def __init__(self, store: SimStore) -> None:
        self._store = store
        self._config = store.config

    def fold(self, state: State, current: Round) -> FoldResult:
        store = self._store
        base = store.weights(state.models[current.base])
        if store.payload(state.models[current.base]) is None:
            raise DamagedFile(f"model {current.base} does not match its digest", "")
        parts = []
        for assignment in current.assignments:
            if assignment.key in current.received:
                name = spool_name(current, assignment.key)
                if name not in store.spool.files:
                    raise FileNotFoundError(name)
                received = current.received[assignment.key]
                if digest(store.spool.files[name], received.digest_kind).hex() != received.digest:
                    raise DamagedFile(f"{name} does not match its digest", assignment.key)
                update = store.books[assignment.client, received.digest]
                scale = current.scale_of(assignment) if assignment.flip == "server" else update.applied_scale
                parts.append((update, received.digest, received.samples, scale, assignment.negated, assignment.ticket))
        for key in current.step.combine.history:
            kept = state.history[key]
            parts.append((store.books[kept.client, kept.digest], kept.digest, kept.samples, 1.0, False, ""))
        ordinary = current.denominator is None
        rate = self._config.plan.server_lr if ordinary else 1.0
        weights = folded(base, parts, current.denominator, rate, rule=current.step.combine.rule)
        store.models[file_name(state.newest + 1, weights.digest)] = weights
        store.note_model(weights)
        return FoldResult(current, weights.digest, MANIFEST.nbytes(MODEL), history=self._history(state, current))

    def _history(self, state: State, current: Round) -> tuple[HistoryRecord, ...]:
        found, store = [], self._store
        for assignment in current.assignments:
            for kind in sorted(history.wanted(state, self._config, current)):
                if assignment.key in current.received:
                    received = current.received[assignment.key]
                    key = f"{kind}/{assignment.client}/{assignment.membership}"
                    kept = HistoryRecord(
                        key=f"norms/{current.number:08d}/{assignment.client}" if kind == "norms" else key,
                        kind=kind,
                        client=assignment.client,
                        membership=assignment.membership,
                        round=current.number,
                        samples=received.samples,
                        norms=(1.0,),
                        digest=received.digest if kind != "norms" else "",
                    )
                    if kept.digest:
                        store.history[history_name(kept)] = store.spool.files[spool_name(current, assignment.key)]
                    found.append(kept)
        return tuple(found)
