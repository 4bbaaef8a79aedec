"""Spans of a worker: download, work and upload, below the span of the round. They do nothing while tracing is off."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager

from puf_common.tracing.places import Place, place_of_round
from puf_common.tracing.process import Note, active, past, span


class WorkTraces:
    """The spans of one piece of work after the other. The main thread of a session uses it."""

    def __init__(self, federation: str, client: str) -> None:
        self._federation, self._client = federation, client
        self._round: Place | None = None
        self._attributes: dict[str, str | int] = {}
        self._begun: float | None = None

    def received(self, number: int, ticket: str = "") -> None:
        """The server gave work of this round."""
        self._round = place_of_round(self._federation, number) if active() is not None else None
        self._attributes = {"round": number, "client": self._client}
        if ticket:
            self._attributes["ticket"] = ticket
        self._begun = None

    def transfer(self, name: str) -> AbstractContextManager[Note]:
        """The span of a transfer. The server's span of the same transfer is below it."""
        return span(name, self._round, **self._attributes)

    def begin(self) -> None:
        """The model is here; the work begins."""
        self._begun = time.time()

    def end(self, name: str, digest: bytes = b"") -> None:
        """The work is done. `digest` is that of the model that it began with."""
        if self._round is not None and self._begun is not None:
            model = {"model.digest": digest.hex()} if digest else {}
            past(name, self._round, self._begun, **self._attributes, **model)
        self._begun = None
