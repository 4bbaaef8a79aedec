"""What a database of a federation's state must do. `sqlite_database` and `postgres_database` do it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Protocol

from puf_common.audit_chain import AuditEntry, Head
from puf_common.errors import Unavailable, UsageError
from puf_server.core.state.state import AuditNote, State

# Keys of facts beside the state.
IDENTITY = "identity"
SIGNING_KEY = "signing_key"


class DatabaseBusy(Unavailable):
    """The transaction was rolled back, because another process writes or the connection was lost. Try it again."""


class StateMoved(DatabaseBusy):
    """Another process has committed a newer state. The transaction was rolled back: read that state, then try again."""


class AlreadyServed(UsageError):
    """Another process serves the federation."""


class AuditLog(Protocol):
    """The audit log at one moment."""

    def meta(self, key: str) -> str | None:
        """A fact beside the state."""
        ...

    def head(self) -> Head: ...

    def lines(self, *events: str) -> Iterator[AuditEntry]:
        """The entries in order; with `events` only entries of these."""
        ...

    def after(self, number: int, limit: int) -> list[AuditEntry]:
        """The entries after this number in order, at most `limit`."""
        ...

    def page(self, *, before: int, limit: int, event: str = "", text: str = "", number: int = 0) -> list[AuditEntry]:
        """Entries below `before` (0: all), newest first: events that begin with `event`, facts that contain `text`.

        With a round's `number` only entries about that round.
        """
        ...


class StateDatabase(Protocol):
    """The records and the audit log of one federation. Only `audit_log` may be used from two threads at the same time."""

    def load(self) -> State: ...

    def newer(self, known: State) -> State | None:
        """The newest state if another process has changed `known`, the state that this process has; else None."""
        ...

    def save(self, before: State | None, after: State, now: float | None = None) -> bool:
        """Writes the difference, the new audit lines and the time, if given, in one transaction. False: there is none.

        Raises StateMoved where `before` is not the newest state.
        """
        ...

    def meta(self, key: str) -> str | None: ...

    def put_meta(self, values: Mapping[str, str | None], note: AuditNote | None = None) -> None:
        """Writes facts beside the state, and an audit line, in one transaction. None deletes a fact."""
        ...

    def audit_log(self) -> AbstractContextManager[AuditLog]:
        """The log on a connection of its own."""
        ...

    def verify(self) -> None:
        """Raises StorageCorrupted where the database is damaged. Reads all of it."""
        ...

    def never_wait(self) -> None:
        """From now on no statement waits for another process."""
        ...

    def log_bytes(self) -> int:
        """Bytes of a log that `purge` shortens."""
        ...

    def purge(self) -> bool:
        """Removes deleted records from files of the database. False: another process prevents it; try again later."""
        ...

    def close(self) -> None: ...
