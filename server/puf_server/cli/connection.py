"""Flags by which a command finds a federation: its state directory, or the operator port of its server."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING

from puf_common.config.parser import Parser
from puf_common.errors import UsageError
from puf_server.cli.place import directory

if TYPE_CHECKING:
    from puf_server.cli.operator_client import OperatorClient

OPERATOR = "127.0.0.1:7301"
# A command right after `puf-server serve &` or `docker compose up -d` meets a server that is still starting.
_START_SECONDS = 5.0
# A command that waits for the end of the work also waits for a server that starts slowly, as long as a client does.
_PATIENT_SECONDS = 30.0


def add_state(command: argparse.ArgumentParser) -> None:
    """Adds --state to a command that also accepts PUF_STATE."""
    command.add_argument("--state", metavar="DIR", help="the federation's state directory (or PUF_STATE)")


def state_directory(arguments: argparse.Namespace) -> Path:
    """The state directory from --state or PUF_STATE, if it contains a federation."""
    given = arguments.state or os.environ.get("PUF_STATE")
    if not given:
        raise UsageError("no federation is given: set --state or PUF_STATE")
    state = directory(given)
    try:
        known = (state / "federation.json").exists()
    except PermissionError:
        raise UsageError(f"{state} belongs to another user: use the account that runs the server") from None
    if not known:
        raise UsageError(f"{state} holds no federation; puf-server init makes one")
    return state


def add_operator_flags(command: Parser) -> None:
    """Adds the flags of every operator command. On the server's machine the state directory is enough."""
    command.add_argument("--operator", metavar="HOST:PORT", default=None, help=f"operator port (default {OPERATOR})")
    add_state(command)
    for flag, about in (
        ("--tls-ca", "from another machine: authority of the server's certificate"),
        ("--tls-cert", "an operator's certificate (puf-server certs operator)"),
        ("--tls-key", "its key"),
    ):
        command.add_argument(flag, type=Path, metavar="FILE", default=None, help=about)
    command.add_argument("--tls-server-name", metavar="HOST", default="", help="name in the server's certificate")


def connect(arguments: argparse.Namespace) -> OperatorClient:
    """Connects with the TLS flags if given, else with the state directory, else without TLS."""
    from puf_server.cli.operator_client import OperatorClient

    seconds = _PATIENT_SECONDS if getattr(arguments, "until_idle", False) else _START_SECONDS
    target = arguments.operator or os.environ.get("PUF_OPERATOR") or ""
    if arguments.tls_ca or arguments.tls_cert or arguments.tls_key:
        from puf_common.network.tls import ClientTls

        tls = ClientTls.load(arguments.tls_ca, arguments.tls_cert, arguments.tls_key, arguments.tls_server_name)
        return OperatorClient(target or OPERATOR, tls, start_seconds=seconds)
    state = arguments.state or os.environ.get("PUF_STATE")
    if state:
        return OperatorClient.of_state(directory(state), target, start_seconds=seconds)
    return OperatorClient(target or OPERATOR, start_seconds=seconds)
