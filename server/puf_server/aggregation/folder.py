"""Computes the model of a closed round from its updates and writes the model file. Changes no state."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

from puf_common.tensors.digests import DigestKind, hasher
from puf_common.tensors.model_file import write_header
from puf_server.aggregation.fold import Contribution, NotFinite, fold
from puf_server.aggregation.history_writer import HistoryFile, read_history, write_history
from puf_server.aggregation.method_rules import Vectors
from puf_server.aggregation.rounded_step import Writers, rounded_step
from puf_server.aggregation.server_step import Moments, step
from puf_server.aggregation.verified import VerifiedSource
from puf_server.core import methods, server_optimizer, step_rounding
from puf_server.core.methods.layers import outputs
from puf_server.core.methods.products import combined
from puf_server.core.state.models import ModelVersion
from puf_server.core.state.rounds import CombineRule, HistoryRecord, Part, Round
from puf_server.core.state.state import State
from puf_server.core.unlearning import history
from puf_server.failpoints import hit
from puf_server.storage.difference_files import STEP, DifferenceFile
from puf_server.storage.state_store import Store
from puf_server.storage.stored_files import StoredFile


@dataclass(frozen=True)
class FoldResult:
    """The model file that a fold has written, or the reason why it has written none."""

    round: Round
    digest: str = ""
    nbytes: int = 0
    blake3: str = ""
    failure: str = ""
    history: tuple[HistoryRecord, ...] = ()
    # Of a step with the rule LINEAR: the factors by vector.
    factors: Mapping[str, float] | None = None
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
        rounded = step_rounding.applies(self._config.plan, current)
        step = self._store.differences.new(state.models[current.base], version, STEP) if rounded else None

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
            factors, carried = self._compute(state, current, write, step)
            hit("fold.end")
            self._store.models.publish(file, version, sha.hexdigest())
            if step is not None:
                step.publish(version, sha.hexdigest())
            kinds = history.wanted(state, self._config, current)
            rate = server_optimizer.plain_rate(self._config.plan, current)
            records = (*carried, *write_history(self._store, state, current, kinds, server_lr=rate))
        except BaseException as error:
            file.discard()
            if step is not None:
                step.discard()
            if not isinstance(error, NotFinite):
                raise
            failure = f"round {current.number}: {error.message}"
            return FoldResult(current, failure=failure, culprit=error.facts.get("client", ""))
        return FoldResult(
            current,
            sha.hexdigest(),
            self._manifest.nbytes("model"),
            blake3=quick.hexdigest(),
            history=records,
            factors=factors,
        )

    def _contributions(self, state: State, current: Round, inputs: _Inputs) -> list[Contribution]:
        """The received updates, and the stored updates that the step adds."""
        found = [
            Contribution(
                client=assignment.client,
                part=assignment.part,
                samples=current.received[assignment.key].samples,
                source=inputs.update(current, assignment.key),
                scale=current.scale_of(assignment) if assignment.flip == "server" else 1.0,
                negated=assignment.negated,
                target=bool(assignment.ticket) and assignment.part is not Part.RETAIN,
                layout=outputs(self._manifest, assignment.outputs),
            )
            for assignment in current.assignments
            if assignment.key in current.received
        ]
        for key in current.step.combine.history:
            record = state.history[key]
            source = inputs.stored(record)
            found.append(Contribution(client=record.client, part="main", samples=record.samples, source=source))
        return found

    def _compute(
        self, state: State, current: Round, write: Callable[[memoryview], object], rounded: DifferenceFile | None
    ) -> tuple[Mapping[str, float] | None, tuple[HistoryRecord, ...]]:
        """Writes the blocks of the new model: by the weighted sum, or by the rule of the round's method.

        Returns the factors of the rule LINEAR, and the records of what this step hands to the next one.
        """
        rule = current.step.combine
        with ExitStack() as stack:
            inputs = _Inputs(self._store, stack)
            base = inputs.model(state.models[current.base])
            updates = self._contributions(state, current, inputs)
            if rule.rule == CombineRule.FOLD:
                try:
                    if rounded is not None:
                        stored = self._rounded(state, current, base, updates, inputs, (write, rounded.write))
                    else:
                        stored = self._fold(state, current, base, updates, inputs, write)
                except NotFinite:
                    # A changed bit makes a number large. The client is to blame only if its file is whole.
                    inputs.verify()
                    raise
                return None, stored
            method = methods.serving_round(self._config.forgetting, current)
            others = {name: inputs.model(state.models[v]) for name, v in rule.others.items()}
            # Rules of methods read files in an order of their own.
            inputs.verify()
            vectors = Vectors(
                self._manifest,
                base.raw,
                {name: source.raw for name, source in others.items()},
                [replace(c, source=c.source.raw) if isinstance(c.source, VerifiedSource) else c for c in updates],
            )
            if rule.rule == CombineRule.LINEAR:
                factors = method.factors(rule, vectors.updates, vectors.products())
                vectors.combine(lambda block: combined(block, factors), write)
                return factors, ()
            measured = vectors.measured() if method.measures else vectors.updates
            noise = self._noise(current) if rule.rule == CombineRule.NOISE else b""
            vectors.combine(method.rule(rule, self._manifest, measured), write, measured, noise)
            return None, ()

    def _fold(
        self,
        state: State,
        current: Round,
        base: VerifiedSource,
        updates: list[Contribution],
        inputs: _Inputs,
        write: Callable[[memoryview], object],
    ) -> tuple[HistoryRecord, ...]:
        """Writes the weighted sum, or the step of the server's optimizer. Returns the records of its new moments."""
        plan = self._config.plan
        if not server_optimizer.applies(plan, current):
            rate = server_optimizer.plain_rate(plan, current)
            fold(self._manifest, base, updates, write, denominator=current.denominator, server_lr=rate)
            inputs.finish()
            return ()
        known = server_optimizer.moments(state)
        old = Moments(inputs.stored(known[0]), inputs.stored(known[1])) if known else None
        files = [HistoryFile(self._store, key) for key in (server_optimizer.FIRST, server_optimizer.SECOND)]
        try:
            step(self._manifest, base, updates, old, plan, (write, files[0].write, files[1].write))
            inputs.finish()
            return tuple(file.publish(kind=server_optimizer.KIND, **_of_no_client(current)) for file in files)
        except BaseException:
            for file in files:
                file.discard()
            raise

    def _rounded(
        self,
        state: State,
        current: Round,
        base: VerifiedSource,
        updates: list[Contribution],
        inputs: _Inputs,
        writers: tuple[Callable[[memoryview], object], Callable[[memoryview], object]],
    ) -> tuple[HistoryRecord, ...]:
        """Writes the model and the step in 8-bit numbers. Returns the record of what rounding has changed."""
        known = step_rounding.error(state, current.base)
        old, file = inputs.stored(known) if known else None, HistoryFile(self._store, step_rounding.KEY)
        try:
            rate = server_optimizer.plain_rate(self._config.plan, current)
            rounded_step(self._manifest, base, updates, old, Writers(*writers, file.write), server_lr=rate)
            inputs.finish()
            return (file.publish(kind=step_rounding.KIND, **_of_no_client(current)),)
        except BaseException:
            file.discard()
            raise

    def _noise(self, current: Round) -> bytes:
        """A seed that only the holder of the signing key can compute. The same fold gets the same one after a restart."""
        about = f"{self._config.id}/{current.number}/{current.attempt}/{','.join(current.targets)}"
        return hashlib.sha256(self._store.key.sign(f"puf noise 1\n{about}".encode())).digest()


class _Inputs:
    """The open files of one fold, each with its digest. `stack` closes them."""

    def __init__(self, store: Store, stack: ExitStack) -> None:
        self._store = store
        self._stack = stack
        self._sources: list[VerifiedSource] = []

    def update(self, current: Round, key: str) -> VerifiedSource:
        received = current.received[key]
        where = self._store.spool.where(current, key)
        return self._open(self._store.spool.read(current, key), where, received.digest, received.digest_kind, key)

    def model(self, model: ModelVersion) -> VerifiedSource:
        source, where = self._store.models.read(model), self._store.models.where(model)
        # BLAKE3 is faster. Records of older versions do not have it.
        if model.blake3:
            return self._open(source, where, model.blake3, "blake3")
        return self._open(source, where, model.digest, "sha256")

    def stored(self, record: HistoryRecord) -> VerifiedSource:
        source = read_history(self._store, record, self._stack)
        self._sources.append(source)
        return source

    def _open(self, raw: StoredFile, where: str, digest: str, kind: DigestKind, key: str = "") -> VerifiedSource:
        source = VerifiedSource(self._stack.enter_context(raw), where, digest, kind, key)
        self._sources.append(source)
        return source

    def finish(self) -> None:
        """Compares all digests after a fold that has read every byte. Raises DamagedFile."""
        for source in self._sources:
            source.finish()

    def verify(self) -> None:
        """Reads and compares all files. Raises DamagedFile."""
        for source in self._sources:
            source.verify()


def _of_no_client(current: Round) -> dict[str, Any]:
    """What is recorded about a file that the server wrote itself in this round."""
    return {"client": "", "membership": 0, "round": current.number, "samples": 0}
