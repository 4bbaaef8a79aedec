"""Commands that show and operate a running federation through its operator port."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from puf_common.config.exit_codes import Exit
from puf_common.config.parser import Parser
from puf_common.errors import UsageError
from puf_server.cli.connection import add_operator_flags, connect

if TYPE_CHECKING:
    from puf_server.cli.operator_client import OperatorClient

    Run = Callable[[OperatorClient, argparse.Namespace], int | None]

_POLL_SECONDS = 0.5
_MOST_ROUNDS = 1_000_000


def add_operator_command(commands: Any, name: str, about: str, run: Run) -> Parser:
    """Adds a command that connects to the operator port and then runs `run`."""
    command: Parser = commands.add_parser(name, help=about, description=f"{about[0].upper()}{about[1:]}.")
    add_operator_flags(command)

    def connected(arguments: argparse.Namespace) -> int | None:
        with connect(arguments) as operator:
            return run(operator, arguments)

    command.set_defaults(run=connected)
    return command


def add_operator_commands(commands: Any) -> None:
    """Adds the commands of this module."""

    def add(name: str, about: str, run: Run, *, json: bool = False) -> Parser:
        command = add_operator_command(commands, name, about, run)
        if json:
            command.add_argument("--json", action="store_true", help="print JSON, for programs")
        return command

    status = add("status", "show a summary of the federation", _status, json=True)
    about = "first wait until the federation is idle; ends with 1 if it was paused or stopped instead"
    status.add_argument("--until-idle", action="store_true", help=about)
    for name, about in (("rounds", "list rounds, newest first"), ("models", "list model versions, newest first")):
        add(name, about, partial(_list, name), json=True)
    tickets = add("tickets", "list requests to be forgotten, newest first, or approve one on hold", _tickets, json=True)
    _add_action(tickets, "list (default) or approve", ["list", "approve", "allow"])
    tickets.add_argument("ticket", nargs="?", metavar="TICKET", help="the ticket to approve")
    about = "list the clients; readmit a forgotten one, approve one on hold, or free a shard"
    clients = add("clients", about, _clients, json=True)
    actions = ["list", "readmit", "approve", "allow", "release"]
    _add_action(clients, "list (default), readmit, approve or release", actions)
    clients.add_argument("name", nargs="?", metavar="NAME", help="the client to readmit, approve, or free the shard of")
    export = add("export", "write a model as a safetensors file", _export)
    export.add_argument("--out", required=True, type=Path, metavar="FILE", help="file to write")
    export.add_argument("--version", type=int, metavar="N", help="model version (default: the newest that is ready)")
    export.add_argument("--unready", action="store_true", help="also a model that is withdrawn or not recovered")
    add("health", "print whether the server serves; ends with 0 if so, for container probes", _health)
    for name, about, done in _ORDERS:
        add(name, about, partial(_order, name, done))
    extend = add("extend", "add training rounds", _extend)
    extend.add_argument("count", nargs="?", type=_rounds_to_add, metavar="N", help="rounds to add")
    extend.add_argument("--rounds", type=_rounds_to_add, metavar="N", help="the same as a flag")


# Commands without arguments: the method of the client, its help, and a sentence with the method's result.
_ORDERS = (
    ("pause", "assign no work and close no round until resume", "paused; continue with puf-server resume"),
    ("resume", "continue after pause, after the federation halted, or after the clock jumped", "resumed"),
    ("release", "serve a model on hold and complete its tickets", "released: the model is ready, its tickets complete"),
    (
        "rollback",
        "undo the unlearning under way; its tickets open again",
        "back to model {}; its tickets are open again",
    ),
    ("stop", "order the clients to leave and end the server", "stopping; the state stays and can be served again"),
)


def _order(name: str, done: str, operator: OperatorClient, _: argparse.Namespace) -> None:
    print(done.format(getattr(operator, name)()))


def _add_action(command: Parser, about: str, choices: list[str]) -> None:
    """Adds the action of a command. The metavar keeps `allow` out of the help: it is the old name of `approve`."""
    command.add_argument("action", nargs="?", choices=choices, default="list", metavar="ACTION", help=about)


def _rounds_to_add(text: str) -> int:
    try:
        rounds = int(text)
    except ValueError:
        rounds = 0
    if not 1 <= rounds <= _MOST_ROUNDS:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of rounds from 1 to {_MOST_ROUNDS:,}")
    return rounds


def _show(messages: Any, arguments: argparse.Namespace, table: str) -> None:
    """Prints messages as JSON or as the table of this name."""
    if arguments.json:
        from google.protobuf.json_format import MessageToDict

        plain = partial(MessageToDict, preserving_proto_field_name=True, always_print_fields_with_no_presence=True)
        print(json.dumps([plain(m) for m in messages] if isinstance(messages, list) else plain(messages), indent=1))
    else:
        from puf_server.cli import tables

        tables.status(messages) if table == "status" else tables.show(table, messages)


def _list(name: str, operator: OperatorClient, arguments: argparse.Namespace) -> None:
    _show(getattr(operator, name)(), arguments, name)


def _status(operator: OperatorClient, arguments: argparse.Namespace) -> int:
    reply = operator.status()
    code = Exit.OK
    if arguments.until_idle:
        from puf_common.v1 import federation_pb2 as fed

        resting = (fed.PHASE_IDLE, fed.PHASE_PAUSED, fed.PHASE_STOPPING)
        while reply.position.phase not in resting:
            time.sleep(_POLL_SECONDS)
            reply = operator.status()
        code = Exit.OK if reply.position.phase == fed.PHASE_IDLE else Exit.FAILURE
    _show(reply, arguments, "status")
    return code


def _tickets(operator: OperatorClient, arguments: argparse.Namespace) -> None:
    if arguments.action == "list":
        _list("tickets", operator, arguments)
    else:
        operator.approve(ticket=_named(arguments.ticket, "puf-server tickets approve TICKET"))
        print(f"{arguments.ticket} is approved; it is served as soon as its client is available")


def _clients(operator: OperatorClient, arguments: argparse.Namespace) -> None:
    if arguments.action == "list":
        _list("clients", operator, arguments)
    elif arguments.action == "release":
        name = _named(arguments.name, "puf-server clients release NAME")
        print(f"shard {operator.release_shard(name)} is free for another client")
    elif arguments.action == "readmit":
        operator.readmit(_named(arguments.name, "puf-server clients readmit NAME"))
        print(f"{arguments.name} may join again with --rejoin")
    else:
        operator.approve(client=_named(arguments.name, "puf-server clients approve NAME"))
        print(f"{arguments.name} is approved and trains from the next round on")


def _named(given: str | None, usage: str) -> str:
    if not given:
        raise UsageError(f"say which one: {usage}")
    return given


def _export(operator: OperatorClient, arguments: argparse.Namespace) -> None:
    header = operator.export(arguments.out, arguments.version, unready=arguments.unready)
    model = header.model
    print(f"model {model.version} (round {model.round}, {header.status}) written to {arguments.out}")
    print(f"sha256 {model.digest.hex()}")


def _health(operator: OperatorClient, _: argparse.Namespace) -> int:
    status = operator.health()
    print(status)
    return Exit.OK if status == "SERVING" else Exit.FAILURE


def _extend(operator: OperatorClient, arguments: argparse.Namespace) -> None:
    given = [number for number in (arguments.count, arguments.rounds) if number is not None]
    if len(given) != 1:
        raise UsageError("say once how many rounds to add: puf-server extend 5")
    print(f"{operator.extend(given[0])} training rounds planned in total")
