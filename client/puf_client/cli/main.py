"""`puf-client`: the table of commands, and how each is run. A command's modules are imported when it runs."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

from puf_common.config.command import guarded
from puf_common.config.parser import Parser
from puf_common.config.settings import add_settings, resolve
from puf_common.errors import UsageError

if TYPE_CHECKING:
    import argparse

    from puf_client.options import Connection, RunOptions


class Command(NamedTuple):
    """`function` is module:name in puf_client. It gets the options, then the values of `arguments` from the parser.

    The options of the command `run` are `options.RunOptions`, and so on. `needs` says what the options must name.
    """

    text: str
    function: str
    needs: str = ""
    arguments: tuple[str, ...] = ()


_COMMANDS = {
    "run": Command("take part in a federation until it ends or forgets this client", "cli.main:run", "name data"),
    "unlearn": Command(
        "ask to be forgotten, as a whole or some samples, and follow the request (also: puf-client --unlearn)",
        "unlearning.run:run_unlearn",
        "name",
    ),
    "status": Command(
        "show this client's requests to be forgotten", "unlearning.tickets:show_status", "name", ("json",)
    ),
    "withdraw": Command(
        "withdraw a request before its round has begun", "unlearning.tickets:withdraw", "name", ("ticket",)
    ),
    "receipt": Command(
        "fetch the signed receipt of a completed request", "unlearning.receipt:fetch_receipt", "name", ("ticket",)
    ),
    "verify": Command("check a receipt, without a network", "unlearning.receipt:verify_receipt", "", ("receipt",)),
    "present": Command(
        "present a receipt to a server that was restored from a backup",
        "unlearning.receipt:present_receipt",
        "name",
        ("receipt",),
    ),
    "data": Command(
        "list samples, show when one was trained on, or name forgotten samples again after the loss of a state directory",
        "cli.data:run_data",
        "name",
        ("action", "what", "json"),
    ),
    "enroll": Command(
        "create a key and a request for this client's certificate; the key stays on this machine",
        "cli.enroll:run_enroll",
    ),
    "init": Command("write a configuration and a task to start from", "cli.scaffold:run_init"),
    "check": Command("try data, model and device before joining", "cli.check:run_check", "data"),
    "model": Command("write an initial model file", "cli.model:run_model"),
    "fleet": Command("start many clients on this machine", "cli.main:fleet", "data"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line and returns the exit code."""
    # gRPC would print its own lines about a failed handshake.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    return guarded(lambda: _main(sys.argv[1:] if argv is None else list(argv)))


def _main(argv: list[str]) -> int:
    argv = _spelled_out(argv)
    arguments = _parser(argv[:1]).parse_args(argv)
    return _run(arguments.command, arguments)


def _parser(chosen: Collection[str]) -> Parser:
    """Returns the parser. Importing pydantic takes time, so only the chosen commands get their flags."""
    parser = Parser(prog="puf-client", description="A client of a federation that can forget.")
    parser.add_argument("--unlearn", action="store_true", help="the same as the command unlearn")
    parser.add_version()
    parser.add_completion(lambda: _parser(_COMMANDS))
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND", parser_class=Parser)
    for name, (text, *_) in _COMMANDS.items():
        command = commands.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.")
        command.set_defaults(command=name)
        if name in chosen:
            _add_flags(command, name)
    return parser


def _spelled_out(argv: list[str]) -> list[str]:
    """Turns `puf-client --unlearn ...` into `puf-client unlearn ...`, wherever the flag is."""
    if "--unlearn" not in argv:
        return argv
    rest = [word for word in argv if word != "--unlearn"]
    if rest and rest[0] in ("run", "unlearn"):
        rest = rest[1:]
    elif rest and rest[0] in _COMMANDS:
        raise UsageError(f"--unlearn is a command and cannot be combined with {rest[0]}")
    return ["unlearn", *rest]


def _add_flags(command: argparse.ArgumentParser, name: str) -> None:
    from puf_client import options

    if name == "withdraw":
        command.add_argument("ticket", nargs="?", default="", help="the request (default: the only one that can be)")
    if name == "receipt":
        command.add_argument("ticket", metavar="TICKET", help="the request")
    if name in ("verify", "present"):
        command.add_argument("receipt", metavar="RECEIPT", help="the JSON file of the receipt")
    if name == "data":
        command.add_argument("action", choices=["list", "used", "exclude"])
        command.add_argument("what", nargs="*", metavar="ID|TICKET", help="used: sample ids; exclude: the ticket")
    if name in ("status", "data"):
        command.add_argument("--json", action="store_true", help="print JSON")
    if name == "fleet":
        command.add_argument(
            "--except", dest="leave_out", action="append", metavar="I,J", help="shards without a client"
        )
    skip = ("leave_out", "shard") if name == "fleet" else ()
    add_settings(command, getattr(options, f"{name.capitalize()}Options"), skip=skip)


def _run(name: str, arguments: argparse.Namespace) -> int:
    from puf_client import options as settings

    command = _COMMANDS[name]
    options = resolve(getattr(settings, f"{name.capitalize()}Options"), arguments, also=settings.EVERYTHING)
    if "name" in command.needs:
        # Ids and groups belong to the data. Only their usage belongs to a name.
        options = _named(options, required=getattr(arguments, "action", "") != "list")
    if "data" in command.needs and not options.data:
        raise UsageError("no data is named: set --data, PUF_DATA, or data in the file given with --config")
    if name == "check" and not (getattr(arguments, "server", None) or os.environ.get("PUF_SERVER")):
        # A configuration file names a server for `run`. A check uses it only if a flag or a variable names it.
        options = options.model_copy(update={"server": ""})
    if command.needs and name != "run":
        _configure_logs(options, **({"client": options.name} if name == "unlearn" else {}))
    module, _, function = command.function.partition(":")
    values = [getattr(arguments, argument) for argument in command.arguments]
    try:
        with _traced(name, options):
            return int(getattr(import_module(f"puf_client.{module}"), function)(options, *values))
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "torch":
            raise
        raise UsageError(f"puf-client {name} needs PyTorch, which is not installed: install puf-fl[train]") from None


def _traced(name: str, options: Any) -> AbstractContextManager[None]:
    """Traces the command. A member of a fleet traces itself: its process is forked, and threads do not survive that."""
    from puf_common.tracing.process import traced

    return traced("puf-client", getattr(options, "trace", "") if name not in ("run", "fleet") else "")


def _named(options: Connection, *, required: bool) -> Connection:
    """Returns the options with the client's name, which may come from its certificate. Checked before data is loaded."""
    from puf_common.names import check_name

    if not options.name and options.tls_cert is not None:
        from puf_client.transport.dial import certified_name

        options = options.model_copy(update={"name": certified_name(options)})
    if not options.name and not required:
        return options
    if not options.name:
        raise UsageError("this client needs a name: set --name, PUF_NAME, or name in the file given with --config")
    check_name(options.name)
    return options


def _configure_logs(options: Any, **ids: object) -> None:
    from puf_client.terminal import stderr
    from puf_common.logging import configure

    configure(log_format=options.log_format, level=options.log_level, stream=stderr(), **ids)


def run(options: RunOptions) -> int:
    _configure_logs(options, client=options.name)
    from puf_client.worker.run import run_worker
    from puf_common.malloc import keep_freed_memory
    from puf_common.tracing.process import traced

    keep_freed_memory()
    with traced("puf-client", options.trace):
        return run_worker(options)


def fleet(options: Any) -> int:
    from puf_client.cli.fleet import run_fleet

    return run_fleet(options, lambda member: guarded(lambda: run(member)))
