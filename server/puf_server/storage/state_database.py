"""What a database of a federation's state must do. `sqlite_database` and `postgres_database` do it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Set
from contextlib import AbstractContextManager
from dataclasses import dataclass
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


class FoldLost(Unavailable):
    """Another process got the right to fold meanwhile. Nothing was written."""


class AlreadyServed(UsageError):
    """Another process serves the federation."""


@dataclass(frozen=True)
class OwnReport:
    """What one process reports to the others."""

    # Workers that it heard since the last time, with their activity.
    workers: Mapping[str, str]
    # All clients that hold a session.
    members: Set[str]
    # The last committed round, and the tensor bytes sent since.
    round: int
    sent: int


@dataclass(frozen=True)
class OthersReport:
    """What the other processes report since the last time."""

    # Seconds since they heard each worker.
    silent: Mapping[str, float]
    activity: Mapping[str, str]
    # Tensor bytes that they sent since the last committed round.
    sent: int


class Watcher(Protocol):
    """A process that serves, as the other processes of its federation reach it. Called from a thread of the database."""

    def changed(self) -> None:
        """Another process has committed, or may have."""
        ...

    def report(self) -> OwnReport: ...

    def learn(self, others: OthersReport) -> None: ...

    def gone(self) -> None:
        """Another process is silent and serves no longer."""
        ...

    def stop(self) -> None:
        """The operator has stopped the federation at another process."""
        ...


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

    # Names this process in the names of its files; empty where no other process serves the federation.
    owner: str

    @property
    def joined(self) -> bool:
        """Whether other processes served the federation when this one opened it."""
        ...

    def watch(self, watcher: Watcher) -> None:
        """Begins to exchange with other processes, if there can be any. The state is recovered."""
        ...

    def is_gone(self, owner: str) -> bool:
        """Whether the process with this name is known to serve no longer."""
        ...

    def stop_others(self) -> bool:
        """Stops the other processes. False: there can be none."""
        ...

    def wall_clock(self, own: Callable[[], float]) -> Callable[[], float]:
        """The wall clock that all processes of the federation follow. `own` is that of this machine."""
        ...

    def begin_fold(self) -> int | None:
        """The right to fold, as a number that the commit must name; None: another process has it."""
        ...

    def end_fold(self) -> None:
        """Gives the right to fold back."""
        ...

    def load(self) -> State: ...

    def newer(self, known: State) -> State | None:
        """The newest state if another process has changed `known`, the state that this process has; else None."""
        ...

    def save(self, before: State | None, after: State, now: float | None = None, fold: int | None = None) -> bool:
        """Writes the difference, the new audit lines and the time, if given, in one transaction. False: there is none.

        Raises StateMoved where `before` is not the newest state, and FoldLost where `fold` is not the newest right.
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


class OneProcess:
    """The part of a StateDatabase about other processes, where there can be none."""

    owner = ""
    joined = False

    def watch(self, watcher: Watcher) -> None:
        pass

    def is_gone(self, owner: str) -> bool:
        return False

    def stop_others(self) -> bool:
        return False

    def wall_clock(self, own: Callable[[], float]) -> Callable[[], float]:
        return own

    def begin_fold(self) -> int | None:
        return 0

    def end_fold(self) -> None:
        pass
