"""A real PostgreSQL for tests: Debian's package, a cluster in a temporary directory, reached by a Unix socket."""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Literal
from urllib.parse import quote

import psycopg

from tests.pki import Pki

__all__ = ["Postgres", "programs"]

# The account that Debian's package makes. PostgreSQL refuses to run as root.
_ACCOUNT = "postgres"
_ROLE = "puf"
_SETTINGS = {"listen_addresses": "127.0.0.1", "fsync": "off", "shared_buffers": "16MB", "max_connections": "60"}


def programs() -> Path | None:
    """The directory with initdb and pg_ctl; None: PostgreSQL is not installed."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    if found:
        return found[-1].parent
    which = shutil.which("initdb")
    return Path(which).resolve().parent if which else None


class Postgres:
    """A running cluster inside `with`. The role of its addresses owns one schema and nothing else."""

    def __init__(self, bin_directory: Path) -> None:
        self._bin = bin_directory
        self._directory = Path(tempfile.mkdtemp(prefix="puf-pg-"))
        self._data = self._directory / "data"
        if os.geteuid() == 0:
            shutil.chown(self._directory, _ACCOUNT)

    def __enter__(self) -> Postgres:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self._run("initdb", "-D", self._data, "-U", _ACCOUNT, "-A", "trust", "-E", "UTF8", "--locale=C.UTF-8", "-N")
        settings = {**_SETTINGS, "unix_socket_directories": self._directory, "port": self.port, **self._certificates()}
        with (self._data / "postgresql.conf").open("a") as file:
            for name, value in settings.items():
                file.write(f"{name} = '{value}'\n")
        self.start()
        self.administer(f"CREATE ROLE {_ROLE} LOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE", "CREATE DATABASE puf")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop("immediate")
        shutil.rmtree(self._directory)

    def _certificates(self) -> dict[str, object]:
        """Settings for TLS with a certificate of the authority in `self.ca`."""
        pki = Pki(self._directory / "pki")
        self.ca = pki.ca
        assert pki.server.key is not None
        settings: dict[str, object] = {"ssl": "on"}
        for name, made in (("ssl_cert_file", pki.server.certificate), ("ssl_key_file", pki.server.key)):
            copy = self._data / made.name
            shutil.copyfile(made, copy)
            copy.chmod(0o600)
            if os.geteuid() == 0:
                shutil.chown(copy, _ACCOUNT)
            settings[name] = copy
        return settings

    def start(self) -> None:
        self._run("pg_ctl", "-D", self._data, "-w", "-l", self._directory / "log", "start")

    def stop(self, mode: Literal["fast", "immediate"] = "fast") -> None:
        self._run("pg_ctl", "-D", self._data, "-w", "-m", mode, "stop")

    def restart(self, mode: Literal["fast", "immediate"] = "immediate") -> None:
        self.stop(mode)
        self.start()

    def address(self, *, ca: Path | None = None) -> str:
        """The address of a new schema, for the role with the fewest rights. With `ca` it uses TLS, else a Unix socket."""
        schema = f"s{secrets.token_hex(6)}"
        self.administer(f"CREATE SCHEMA {schema} AUTHORIZATION {_ROLE}", database="puf")
        options = quote(f"-csearch_path={schema}", safe="")
        if ca is not None:
            tls = f"sslmode=verify-full&sslrootcert={quote(str(ca), safe='')}"
            return f"postgresql://{_ROLE}@localhost:{self.port}/puf?{tls}&options={options}"
        where = quote(str(self._directory), safe="")
        return f"postgresql://{_ROLE}@/puf?host={where}&port={self.port}&options={options}"

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
            done = subprocess.run(
                command, stdout=output, stderr=output, stdin=subprocess.DEVNULL, cwd="/", check=False, **account
            )
        assert not done.returncode, (self._directory / "output").read_text()
