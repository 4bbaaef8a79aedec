"""`puf-client`: take part in a federation, and leave it again without a trace."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from puf_common.config.exit_codes import Exit
from puf_common.config.settings import Parser, add_settings, guarded, resolve
from puf_common.errors import UsageError

if TYPE_CHECKING:
    import argparse

    from pydantic import BaseModel

    from puf_client.cli.options import Connection, LocalOptions, RunOptions
    from puf_common.logging import LogSettings

__all__ = ["main"]

M = TypeVar("M", bound="BaseModel")
C = TypeVar("C", bound="Connection")

_COMMANDS = {
    "run": "take part in a federation until it ends or forgets this client",
    "unlearn": "ask to be forgotten, wholly or some samples, and see it done (also: puf-client --unlearn)",
    "status": "show this client's own requests to be forgotten",
    "withdraw": "take a request back before its round has begun",
    "receipt": "fetch the signed receipt of a completed request",
    "verify": "check a receipt, without any network",
    "present": "show a receipt to a server that was restored from a backup",
    "data": "tell when a sample was trained on, or name forgotten ones again after a lost state directory",
    "enroll": "make a key and a request for this client's certificate; the key stays here",
    "init": "write a configuration and a task of your own to start from",
    "check": "try data, model and device before joining",
    "model": "write an initial model file",
    "fleet": "start many clients on this machine",
}


def main(argv: Sequence[str] | None = None) -> int:
    # gRPC's own lines about a failed handshake; ours says what to do.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    return guarded(lambda: _main(sys.argv[1:] if argv is None else list(argv)))


def _main(argv: list[str]) -> int:
    argv = _spelled_out(argv)
    parser = Parser(prog="puf-client", description="A client of a federation that can forget.")
    parser.add_argument("--unlearn", action="store_true", help="the same as the command unlearn")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND", parser_class=Parser)
    for name, help_text in _COMMANDS.items():
        command = commands.add_parser(name, help=help_text, description=f"{help_text[0].upper()}{help_text[1:]}.")
        command.set_defaults(command=name)
        # Settings are built by pydantic; only the command that is asked for pays for it.
        if argv and argv[0] == name:
            _add_flags(command, name)
    arguments = parser.parse_args(argv)
    return int(_RUN[arguments.command](arguments))


def _spelled_out(argv: list[str]) -> list[str]:
    """`puf-client --unlearn ...` is `puf-client unlearn ...`, wherever the flag stands."""
    if "--unlearn" not in argv:
        return argv
    rest = [word for word in argv if word != "--unlearn"]
    if rest and rest[0] in ("run", "unlearn"):
        rest = rest[1:]
    elif rest and rest[0] in _COMMANDS:
        raise UsageError(f"--unlearn is a command of its own and does not go with {rest[0]}")
    return ["unlearn", *rest]


def _add_flags(command: argparse.ArgumentParser, name: str) -> None:
    from puf_client.cli import options

    if name == "withdraw":
        command.add_argument("ticket", nargs="?", default="", help="which request (default: the only one that can be)")
    if name == "receipt":
        command.add_argument("ticket", metavar="TICKET", help="which request")
    if name in ("verify", "present"):
        command.add_argument("receipt", metavar="RECEIPT", help="the receipt's JSON file")
    if name == "data":
        command.add_argument("action", choices=["used", "exclude"])
        command.add_argument("what", nargs="+", metavar="ID|TICKET", help="used: sample ids; exclude: the ticket")
    if name in ("status", "data"):
        command.add_argument("--json", action="store_true", help="for programs")
    if name == "fleet":
        command.add_argument(
            "--except", dest="leave_out", action="append", metavar="I,J", help="shards without a client"
        )
    models: dict[str, type[BaseModel]] = {
        "run": options.RunOptions,
        "unlearn": options.UnlearnOptions,
        "status": options.StatusOptions,
        "withdraw": options.WithdrawOptions,
        "receipt": options.ReceiptOptions,
        "verify": options.VerifyOptions,
        "present": options.PresentOptions,
        "data": options.DataOptions,
        "enroll": options.EnrollOptions,
        "init": options.InitOptions,
        "check": options.CheckOptions,
        "model": options.ModelOptions,
        "fleet": options.FleetOptions,
    }
    add_settings(command, models[name], skip=("leave_out", "shard") if name == "fleet" else ())


def _resolve(model: type[M], arguments: argparse.Namespace) -> M:
    from puf_client.cli.options import EVERYTHING

    return resolve(model, arguments, also=EVERYTHING)


def _named(options: C) -> C:
    """Checked before anything is loaded: a missing flag must not cost a minute. A certificate names its client."""
    from puf_common.names import check_name

    if not options.name and options.tls_cert is not None:
        from puf_client.transport.dial import certified_name

        options = options.model_copy(update={"name": certified_name(options)})
    if not options.name:
        raise UsageError("this client needs a name: set --name, PUF_NAME or name in the file given with --config")
    check_name(options.name)
    return options


def _with_data(options: LocalOptions) -> None:
    if not options.data:
        raise UsageError("say which data: set --data, PUF_DATA or data in the file given with --config")


def _logs(options: LogSettings, **ids: object) -> None:
    from puf_client.worker.display import stderr
    from puf_common.logging import configure

    configure(log_format=options.log_format, level=options.log_level, stream=stderr(), **ids)


def _run(arguments: argparse.Namespace) -> int:
    from puf_client.cli.options import RunOptions

    options = _resolve(RunOptions, arguments)
    options = _named(options)
    _with_data(options)
    return _run_with(options)


def _run_with(options: RunOptions) -> int:
    _logs(options, client=options.name)
    from puf_client.worker.worker import run_agent
    from puf_common.malloc import keep_freed_memory

    keep_freed_memory()

    return run_agent(options)


def _unlearn(arguments: argparse.Namespace) -> int:
    from puf_client.cli.options import UnlearnOptions

    options = _resolve(UnlearnOptions, arguments)
    options = _named(options)
    _logs(options, client=options.name)
    from puf_client.unlearning.request import run_unlearn

    return run_unlearn(options)


def _status(arguments: argparse.Namespace) -> int:
    from puf_client.cli.options import StatusOptions

    options = _resolve(StatusOptions, arguments)
    options = _named(options)
    _logs(options)
    from puf_client.unlearning.tickets import show_status

    return show_status(options, as_json=arguments.json)


def _withdraw(arguments: argparse.Namespace) -> int:
    from puf_client.cli.options import WithdrawOptions

    options = _resolve(WithdrawOptions, arguments)
    options = _named(options)
    _logs(options)
    from puf_client.unlearning.tickets import withdraw

    return withdraw(options, arguments.ticket)


def _data(arguments: argparse.Namespace) -> int:
    from puf_client.cli.options import DataOptions

    options = _named(_resolve(DataOptions, arguments))
    _logs(options)
    from puf_client.cli.data import exclude, used

    if arguments.action == "used":
        return used(options, arguments.what, as_json=arguments.json)
    if len(arguments.what) != 1:
        raise UsageError("exclude takes one ticket at a time")
    return exclude(options, arguments.what[0])


def _enroll(arguments: argparse.Namespace) -> int:
    from puf_client.cli.options import EnrollOptions

    options = _resolve(EnrollOptions, arguments)
    if not options.name:
        raise UsageError("this client needs a name: set --name")
    from puf_client.cli.enroll import enroll

    if options.through is not None:
        from puf_client.cli.enroll import enroll_through

        certificate = enroll_through(options.name, options.dir, options.through, patience=options.patience)
        print(f"{options.name} is enrolled: {certificate}")
        return Exit.OK
    key, request = enroll(options.name, options.dir, renew=options.renew)
    print(f"written: {key} (never send it anywhere) and {request}")
    print(
        f"next: the operator runs `puf-server certs sign {request.name} --name {options.name}` and sends back two files:"
    )
    print(f"{options.name}.crt, for --tls-cert beside --tls-key {key}, and ca.crt, for --tls-ca")
    return Exit.OK


def _receipt(arguments: argparse.Namespace) -> int:
    from puf_client.cli.options import ReceiptOptions

    options = _named(_resolve(ReceiptOptions, arguments))
    _logs(options)
    from puf_client.unlearning.receipt import fetch_receipt

    return fetch_receipt(options, arguments.ticket)


def _verify(arguments: argparse.Namespace) -> int:
    from pathlib import Path

    from puf_client.cli.options import VerifyOptions
    from puf_client.unlearning.receipt import verify_receipt

    return verify_receipt(_resolve(VerifyOptions, arguments), Path(arguments.receipt))


def _present(arguments: argparse.Namespace) -> int:
    from pathlib import Path

    from puf_client.cli.options import PresentOptions

    options = _named(_resolve(PresentOptions, arguments))
    _logs(options)
    from puf_client.unlearning.receipt import present_receipt

    return present_receipt(options, Path(arguments.receipt))


def _init(arguments: argparse.Namespace) -> int:
    from puf_client.cli import scaffold
    from puf_client.cli.options import InitOptions

    for path in scaffold.write(_resolve(InitOptions, arguments).directory):
        print(f"written: {path}")
    print("next: adapt both, then `puf-client check --config puf-client.toml`")
    return Exit.OK


def _check(arguments: argparse.Namespace) -> int:
    from puf_client.cli.options import CheckOptions

    options = _resolve(CheckOptions, arguments)
    _with_data(options)
    if not (getattr(arguments, "server", None) or os.environ.get("PUF_SERVER")):
        # The file that `init` wrote names a server for `run`; checking works without one unless somebody asks for it.
        options = options.model_copy(update={"server": ""})
    _logs(options)
    from puf_client.cli.check import run_check

    return run_check(options)


def _model(arguments: argparse.Namespace) -> int:
    from puf_client.cli.options import ModelOptions

    options = _resolve(ModelOptions, arguments)
    from puf_common.models.registry import build_any, manifest_of, payload_of
    from puf_common.tensors.model_file import save

    model = build_any(options.model, options.model_option, options.seed)
    manifest = manifest_of(model)
    save(options.out, manifest, payload_of(model, manifest), {"model": options.model, "seed": str(options.seed)})
    buffers = sum(t.role == "buffer" for t in manifest.tensors)
    print(
        f"{options.out}: {manifest.parameters:,} parameters in {len(manifest.tensors) - buffers} tensors, {buffers} buffers"
    )
    print(f"fingerprint {manifest.fingerprint.hex()}")
    return Exit.OK


def _fleet(arguments: argparse.Namespace) -> int:
    from puf_client.cli.options import FleetOptions

    options = _resolve(FleetOptions, arguments)
    _with_data(options)
    _logs(options)
    from puf_client.cli.fleet import run_fleet

    return run_fleet(options, lambda member: guarded(lambda: _run_with(member)))


_RUN: dict[str, Any] = {
    "run": _run,
    "unlearn": _unlearn,
    "status": _status,
    "withdraw": _withdraw,
    "receipt": _receipt,
    "verify": _verify,
    "present": _present,
    "data": _data,
    "enroll": _enroll,
    "init": _init,
    "check": _check,
    "model": _model,
    "fleet": _fleet,
}
