"""What a client gets that asks for a model: the whole model, or the difference to a model that it holds.

A difference is made once, when the first client asks for it, in a file thread. Clients that ask meanwhile wait for it: the
line of a client that wants differences is slower than the encoder. Any failure gives the whole model.
"""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from puf_common.logging import get_logger
from puf_common.v1 import federation_pb2 as fed
from puf_common.v1 import tensors_pb2 as ts
from puf_server.core.state.models import ModelVersion
from puf_server.core.unlearning import model_versions
from puf_server.engine.engine import Engine
from puf_server.rpc.model_stream import Content, Run
from puf_server.storage.difference_files import EXACT, STEP, StoredDifference

_KINDS = {EXACT: ts.DIFFERENCE_KIND_EXACT, STEP: ts.DIFFERENCE_KIND_STEP_I8}
log = get_logger(__name__)

_Pair = tuple[str, str]


class Download(NamedTuple):
    """The content of one stream, from byte `begin` on."""

    content: Content
    begin: int
    difference: fed.Difference | None = None


class Downloads:
    """Use on one event loop. `run` moves a blocking call to a file thread."""

    def __init__(self, engine: Engine, run: Run) -> None:
        self._engine = engine
        self._store = engine.store
        self._run = run
        self._ended = False
        self._made: dict[_Pair, asyncio.Future[StoredDifference | None]] = {}
        # One at a time: encoding must not take the threads that uploads need.
        self._encoding = asyncio.Semaphore(1)

    def end(self) -> None:
        """Ends the encoding under way: a server that stops does not wait for it."""
        self._ended = True

    async def choose(self, model: ModelVersion, request: fed.FetchModelRequest) -> Download:
        """The whole model, a difference, or the rest of what an earlier stream began to send."""
        whole = Content(model.digest, model.nbytes, lambda: self._store.models.read(model))
        if request.resume_at and request.resume_digest.hex() == model.digest:
            return Download(whole, min(request.resume_at, whole.nbytes))
        found = await self._difference(model, request)
        if found is None:
            return Download(whole, 0)
        same = request.resume_digest.hex() == found.digest
        return Download(
            Content(found.digest, found.nbytes, lambda: self._store.differences.read(found)),
            min(request.resume_at, found.nbytes) if same else 0,
            fed.Difference(
                base_version=found.base,
                kind=_KINDS[found.kind],
                byte_length=found.nbytes,
                digest=bytes.fromhex(found.digest),
            ),
        )

    async def _difference(self, model: ModelVersion, request: fed.FetchModelRequest) -> StoredDifference | None:
        state = self._engine.state
        base = state.models.get(request.held_version)
        if self._engine.config.plan.step_encoding == "full" or base is None:
            return None
        wanted = {(state.models[a].digest, state.models[b].digest) for a, b in model_versions.differences(state)}
        self._made = {pair: future for pair, future in self._made.items() if pair in wanted or not future.done()}
        # A server that was restored has another model under the same number.
        if request.held_digest.hex() != base.digest or not self._allowed(base, model):
            return None
        pair = base.digest, model.digest
        if pair not in self._made:
            self._made[pair] = asyncio.ensure_future(self._find_or_make(base, model))
        # A client that ends its call must not cancel the difference of the others.
        return await asyncio.shield(self._made[pair])

    async def _find_or_make(self, base: ModelVersion, model: ModelVersion) -> StoredDifference | None:
        files = self._store.differences
        try:
            found: StoredDifference | None = await self._run(files.find, base, model)
            if found is None:
                async with self._encoding:
                    found = await self._run(files.make, base, model, lambda: self._allowed(base, model))
        except Exception as error:
            log.warning("no difference was made; clients get the whole model", version=model.version, error=str(error))
            return None
        # Models may be deleted before clients have read a difference. Its file is gone then.
        return found if self._allowed(base, model) else None

    def _allowed(self, base: ModelVersion, model: ModelVersion) -> bool:
        return not self._ended and (base.version, model.version) in model_versions.differences(self._engine.state)
