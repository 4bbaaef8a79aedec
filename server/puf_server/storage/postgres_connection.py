"""Connections to PostgreSQL, and its errors as errors of PUF."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg import conninfo, errors

from puf_common.errors import PufError, StorageCorrupted, Unavailable, UsageError
from puf_common.logging import get_logger
from puf_server.storage.postgres_tables import Connection
from puf_server.storage.state_database import DatabaseBusy

log = get_logger(__name__)

# A database that does not answer must not hold up the server for minutes. The address may state other values.
_DEFAULTS: dict[str, Any] = {
    "connect_timeout": 5,
    "keepalives_idle": 10,
    "keepalives_interval": 3,
    "keepalives_count": 3,
    "tcp_user_timeout": 15000,
}
_RELEASE_LOCKS = (
    "SET idle_in_transaction_session_timeout = '5s'; SET tcp_keepalives_idle = 10; SET tcp_keepalives_interval = 3; "
    "SET tcp_keepalives_count = 3"
)
_LOCAL = ("", "localhost", "127.0.0.1", "::1")


class Address:
    """The address of a database, with all parameters of libpq, among them those of TLS."""

    def __init__(self, text: str, name: str = "puf-server") -> None:
        """`name` is shown in the database's list of sessions."""
        try:
            given = conninfo.conninfo_to_dict(text)
        except psycopg.ProgrammingError:
            # The text of the error could repeat a password.
            raise UsageError(
                "the address of the database cannot be read; write postgresql://USER@HOST:PORT/DATABASE?sslmode=verify-full"
            ) from None
        self._parameters = {**_DEFAULTS, **given, "application_name": name}
        host, port = given.get("host") or given.get("hostaddr") or "", given.get("port")
        self._remote = not all(h in _LOCAL or h.startswith("/") for h in str(host).split(","))
        # For messages: without the password.
        self.shown = f"{host or 'localhost'}{f':{port}' if port else ''}/{given.get('dbname') or ''}"

    def connect(self) -> Connection:
        """A new connection without an open transaction. Raises DatabaseBusy where the database cannot be reached."""
        try:
            db = psycopg.connect(**self._parameters, autocommit=True)
        except psycopg.OperationalError as error:
            raise DatabaseBusy(f"the database {self.shown} cannot be reached: {_line(error)}") from None
        try:
            self._check(db)
        except BaseException:
            db.close()
            raise
        return db

    def _check(self, db: Connection) -> None:
        with translated(self.shown):
            if db.info.parameter_status("server_encoding") != "UTF8":
                raise UsageError(f"the database {self.shown} must have the encoding UTF8")
            # What is acknowledged must be on disk, whatever the role's default is.
            if db.execute("SHOW synchronous_commit").fetchone() == ("off",):
                db.execute("SET synchronous_commit = on")
            # A process that is stopped, or whose machine is gone, must not hold locks for minutes.
            db.execute(_RELEASE_LOCKS)

    def warn(self, db: Connection) -> None:
        """Logs what makes the connection or the database unsafe."""
        if self._remote and not db.pgconn.ssl_in_use:
            log.warning("the connection to the database is not encrypted; add sslmode=verify-full", database=self.shown)
        if db.execute("SHOW fsync").fetchone() == ("off",):
            log.warning("the database does not sync its files: a power cut can damage it", database=self.shown)


@contextmanager
def translated(shown: str) -> Iterator[None]:
    """Turns an error of the database into one of PUF. DatabaseBusy: the caller must take a new connection."""
    try:
        yield
    except psycopg.Error as error:
        raise _translation(error, shown) from error


def _translation(error: psycopg.Error, shown: str) -> PufError:
    if isinstance(error, errors.DiskFull):
        return Unavailable("the disk of the database is full: nothing was changed; try again when there is room")
    if isinstance(error, (errors.SerializationFailure, errors.DeadlockDetected, errors.LockNotAvailable)):
        return DatabaseBusy(f"the state cannot be written: another process uses the database {shown} for a long time")
    if isinstance(error, (errors.DataCorrupted, errors.IndexCorrupted)):
        return StorageCorrupted(f"the database {shown} is damaged and cannot be read: {_line(error)}; restore a backup")
    if isinstance(error, errors.InsufficientPrivilege):
        return Unavailable(f"the role in the address of the database {shown} may not do this: {_line(error)}")
    # A server that became a standby accepts no writes. A new connection may reach the new primary.
    if isinstance(error, (psycopg.OperationalError, psycopg.InterfaceError, errors.ReadOnlySqlTransaction)):
        return DatabaseBusy(f"the connection to the database {shown} was lost: {_line(error)}")
    return Unavailable(f"the database {shown} refuses: {_line(error)}")


def _line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
