"""A PostgreSQL cluster in a temporary directory, made with the programs of Debian's package."""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self
from urllib.parse import quote

import psycopg

from puf_common.errors import PufError

# The account that Debian's package makes. PostgreSQL refuses to run as root.
_ACCOUNT = "postgres"
ROLE = "puf"
_SETTINGS = {"listen_addresses": "127.0.0.1", "shared_buffers": "16MB", "max_connections": "60"}


def programs() -> Path | None:
    """The directory with initdb and pg_ctl; None: PostgreSQL is not installed."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    if found:
        return found[-1].parent
    which = shutil.which("initdb")
    return Path(which).resolve().parent if which else None


class Postgres:
    """A running cluster inside `with`. The role of its addresses owns one schema and nothing else."""

    def __init__(self, bin_directory: Path, settings: Mapping[str, object] | None = None) -> None:
        self._bin = bin_directory
        self._settings = dict(settings or {})
        self._directory = Path(tempfile.mkdtemp(prefix="puf-pg-"))
        self._data = self._directory / "data"
        self._give(self._directory)

    def __enter__(self) -> Self:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port: int = free.getsockname()[1]
        self._run("initdb", "-D", self._data, "-U", _ACCOUNT, "-A", "trust", "-E", "UTF8", "--locale=C.UTF-8", "-N")
        where = {"unix_socket_directories": self._directory, "port": self.port}
        with (self._data / "postgresql.conf").open("a") as file:
            for name, value in {**_SETTINGS, **where, **self._settings, **self._more_settings()}.items():
                file.write(f"{name} = '{value}'\n")
        self.start()
        self.administer(f"CREATE ROLE {ROLE} LOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE", "CREATE DATABASE puf")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop("immediate")
        shutil.rmtree(self._directory)

    def _more_settings(self) -> dict[str, object]:
        """Settings that name files of the new cluster."""
        return {}

    @property
    def pid(self) -> int:
        """The first process of the cluster. All others are its children."""
        return int((self._data / "postmaster.pid").read_text().split()[0])

    def start(self) -> None:
        self._run("pg_ctl", "-D", self._data, "-w", "-l", self._directory / "log", "start")

    def stop(self, mode: Literal["fast", "immediate"] = "fast") -> None:
        self._run("pg_ctl", "-D", self._data, "-w", "-m", mode, "stop")

    def restart(self, mode: Literal["fast", "immediate"] = "immediate") -> None:
        self.stop(mode)
        self.start()

    def new_schema(self) -> str:
        """The part of an address that names a new schema, for the role with the fewest rights."""
        schema = f"s{secrets.token_hex(6)}"
        self.administer(f"CREATE SCHEMA {schema} AUTHORIZATION {ROLE}", database="puf")
        return "options=" + quote(f"-csearch_path={schema}", safe="")

    def address(self) -> str:
        """The address of a new schema. It uses a Unix socket."""
        where = quote(str(self._directory), safe="")
        return f"postgresql://{ROLE}@/puf?host={where}&port={self.port}&{self.new_schema()}"

    def _give(self, path: Path) -> None:
        """Makes the cluster's account own a file."""
        if os.geteuid() == 0:
            shutil.chown(path, _ACCOUNT)

    def administer(self, *statements: str, database: str = "postgres") -> None:
        where: dict[str, Any] = {"host": str(self._directory), "port": self.port, "user": _ACCOUNT, "dbname": database}
        with psycopg.connect(**where, autocommit=True) as db:
            for statement in statements:
                db.execute(statement.encode())

    def _run(self, program: str, *arguments: str | Path) -> None:
        account: dict[str, Any] = {"user": _ACCOUNT, "group": _ACCOUNT} if os.geteuid() == 0 else {}
        command: Sequence[str | Path] = [self._bin / program, *arguments]
        # Into a file: the server inherits it and would keep a pipe open.
        with (self._directory / "output").open("ab") as output:
            done = subprocess.run(  # noqa: S603
                command, stdout=output, stderr=output, stdin=subprocess.DEVNULL, cwd="/", check=False, **account
            )
        if done.returncode:
            raise PufError(f"{program} failed: {(self._directory / 'output').read_text()}")
