"""`puf-server`: make a federation, serve it, look at it, steer it."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from puf_common.config.exit_codes import Exit
from puf_common.config.settings import Parser, add_settings, guarded, resolve
from puf_server.cli.access import add_certs, add_operator_access, add_tokens, operator_control
from puf_server.cli.proof import add_proof

if TYPE_CHECKING:
    from puf_server.cli.operator_client import Control

__all__ = ["main"]

OPERATOR = "127.0.0.1:7301"
_LOOK_AGAIN = 0.5


def main(argv: Sequence[str] | None = None) -> int:
    # gRPC's own line about a port in use; ours says what to do.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    return guarded(lambda: _main(sys.argv[1:] if argv is None else list(argv)))


def _main(argv: list[str]) -> int:
    parser = _parser(argv)
    arguments = parser.parse_args(argv)
    run: Callable[[argparse.Namespace], int] = arguments.run
    return run(arguments)


def _parser(argv: list[str]) -> Parser:
    parser = Parser(prog="puf-server", description="The aggregation server of a federation that can forget.")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND", parser_class=Parser)
    chosen = next((word for word in argv if not word.startswith("-")), "")

    init = commands.add_parser("init", help="make a federation: state directory and initial model")
    init.set_defaults(run=_init)
    serve = commands.add_parser("serve", help="serve a federation until it is stopped")
    serve.set_defaults(run=_serve)
    # Settings are built by pydantic; only the command that is asked for pays for it.
    if chosen == "init":
        from puf_server.cli.init import InitSettings

        add_settings(init, InitSettings, nested=True)
    if chosen == "serve":
        from puf_server.cli.serve import ServeSettings

        add_settings(serve, ServeSettings, nested=True)

    listed = commands.add_parser("methods", help="ways to forget, and what each of them needs")
    listed.add_argument("--markdown", action="store_true", help="as a table for a document")
    listed.set_defaults(run=_methods)

    def operator(name: str, help_text: str, run: Callable[[Control, argparse.Namespace], int]) -> Parser:
        command: Parser = commands.add_parser(name, help=help_text, description=help_text)
        command.add_argument(
            "--operator", metavar="HOST:PORT", default=None, help=f"operator port (default {OPERATOR})"
        )
        add_operator_access(command)
        command.set_defaults(run=lambda arguments: _with_control(arguments, run))
        return command

    certs = commands.add_parser("certs", help="make, renew and revoke certificates")
    tokens = commands.add_parser("tokens", help="make, rotate and revoke clients' tokens")
    add_certs(certs)
    add_tokens(tokens)

    for name, help_text, shown in (
        ("status", "everything at a glance", _status),
        ("rounds", "rounds, newest first", _rounds),
        ("models", "model versions, newest first", _models),
    ):
        command = operator(name, help_text, shown)
        command.add_argument("--json", action="store_true", help="for programs")
        if name == "status":
            text = "wait while there is work, then show it; ends with 1 if the federation was paused or stopped instead"
            command.add_argument("--until-idle", action="store_true", help=text)
    tickets = operator("tickets", "requests to be forgotten, newest first; or allow one that is held", _tickets)
    tickets.add_argument("action", nargs="?", choices=["list", "allow"], default="list")
    tickets.add_argument("ticket", nargs="?", help="ticket to allow")
    tickets.add_argument("--json", action="store_true", help="for programs")
    clients = operator(
        "clients", "the roster; readmit a forgotten name, allow one that is held, or free a shard", _clients
    )
    clients.add_argument("action", nargs="?", choices=["list", "readmit", "allow", "release"], default="list")
    clients.add_argument("name", nargs="?", help="client to readmit or to allow, or whose shard others may have")
    clients.add_argument("--json", action="store_true", help="for programs")
    export = operator("export", "write a model as a safetensors file", _export)
    export.add_argument("--out", required=True, type=Path, metavar="FILE")
    export.add_argument("--version", type=int, metavar="N", help="model version (default: the newest that is ready)")
    export.add_argument("--unready", action="store_true", help="also a model that is withdrawn or not recovered")
    operator("health", "whether the server serves: ends with 0 if so, for probes of containers", _health)
    operator("pause", "hand out no work and close no round until resume", _pause)
    operator("resume", "go on after pause, or after the federation halted by itself", _resume)
    operator("release", "serve a model that collapsed after unlearning all the same", _release)
    operator("rollback", "go back to the model before the unlearning under way; its tickets open again", _rollback)
    extend = operator("extend", "add training rounds", _extend)
    extend.add_argument("--rounds", required=True, type=int, metavar="N")
    operator("stop", "send clients home and end the server", _stop)
    add_proof(commands, operator)
    return parser


def _init(arguments: argparse.Namespace) -> int:
    from puf_server.cli.init import InitSettings, init
    from puf_server.storage.state_store import key_fingerprint

    settings = resolve(InitSettings, arguments)
    config, manifest = init(settings)
    print(f"federation {config.id} made in {settings.state}")
    print(f"model {config.model}: {manifest.parameters:,} parameters, fingerprint {manifest.fingerprint.hex()[:16]}")
    print(f"receipts are signed with the key {key_fingerprint(settings.state)}")
    print(f"next: puf-server serve --state {settings.state} --insecure")
    return Exit.OK


def _methods(arguments: argparse.Namespace) -> int:
    if arguments.markdown:
        from puf_server.core.methods.comparison import markdown

        print(markdown(), end="")
        return Exit.OK
    from puf_server.cli import tables

    tables.methods()
    return Exit.OK


def _serve(arguments: argparse.Namespace) -> int:
    from puf_server.cli.serve import ServeSettings, run

    run(resolve(ServeSettings, arguments))
    return Exit.OK


def _with_control(arguments: argparse.Namespace, run: Callable[[Control, argparse.Namespace], int]) -> int:
    with operator_control(arguments, OPERATOR) as control:
        return run(control, arguments)


def _print_json(messages: Any) -> int:
    from google.protobuf.json_format import MessageToDict

    def plain(message: Any) -> Any:
        return MessageToDict(message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True)

    shown = [plain(m) for m in messages] if isinstance(messages, list) else plain(messages)
    print(json.dumps(shown, indent=1))
    return Exit.OK


def _status(control: Control, arguments: argparse.Namespace) -> int:
    reply = control.status()
    code = Exit.OK
    if arguments.until_idle:
        from puf_common.v1 import federation_pb2 as fed

        resting = (fed.PHASE_IDLE, fed.PHASE_PAUSED, fed.PHASE_STOPPING)
        while reply.position.phase not in resting:
            time.sleep(_LOOK_AGAIN)
            reply = control.status()
        code = Exit.OK if reply.position.phase == fed.PHASE_IDLE else Exit.FAILURE
    if arguments.json:
        _print_json(reply)
        return code
    from puf_server.cli import tables

    tables.status(reply)
    return code


def _rounds(control: Control, arguments: argparse.Namespace) -> int:
    found = control.rounds()
    if arguments.json:
        return _print_json(found)
    from puf_server.cli import tables

    tables.rounds(found)
    return Exit.OK


def _tickets(control: Control, arguments: argparse.Namespace) -> int:
    if arguments.action == "allow":
        control.allow(ticket=_named(arguments.ticket, "puf-server tickets allow TICKET"))
        print(f"{arguments.ticket} is served as soon as its client is there")
        return Exit.OK
    found = control.tickets()
    if arguments.json:
        return _print_json(found)
    from puf_server.cli import tables

    tables.tickets(found)
    return Exit.OK


def _models(control: Control, arguments: argparse.Namespace) -> int:
    found = control.models()
    if arguments.json:
        return _print_json(found)
    from puf_server.cli import tables

    tables.models(found)
    return Exit.OK


def _clients(control: Control, arguments: argparse.Namespace) -> int:
    if arguments.action == "release":
        name = _named(arguments.name, "puf-server clients release NAME")
        print(f"shard {control.release_shard(name)} is free for another client")
        return Exit.OK
    if arguments.action == "readmit":
        control.readmit(_named(arguments.name, "puf-server clients readmit NAME"))
        print(f"{arguments.name} may join again with --rejoin")
        return Exit.OK
    if arguments.action == "allow":
        control.allow(client=_named(arguments.name, "puf-server clients allow NAME"))
        print(f"{arguments.name} takes part from the next round on")
        return Exit.OK
    found = control.clients()
    if arguments.json:
        return _print_json(found)
    from puf_server.cli import tables

    tables.clients(found)
    return Exit.OK


def _named(given: str | None, usage: str) -> str:
    from puf_common.errors import UsageError

    if not given:
        raise UsageError(f"say which one: {usage}")
    return given


def _release(control: Control, _: argparse.Namespace) -> int:
    control.release()
    print("released: the model is ready, its tickets are completed")
    return Exit.OK


def _rollback(control: Control, _: argparse.Namespace) -> int:
    print(f"back to model {control.rollback()}; the tickets since then are open again")
    return Exit.OK


def _export(control: Control, arguments: argparse.Namespace) -> int:
    header = control.export(arguments.out, arguments.version, unready=arguments.unready)
    model = header.model
    print(f"model {model.version} (round {model.round}, {header.status}) written to {arguments.out}")
    print(f"sha256 {model.digest.hex()}")
    return Exit.OK


def _health(control: Control, _: argparse.Namespace) -> int:
    status = control.health()
    print(status)
    return Exit.OK if status == "SERVING" else Exit.FAILURE


def _pause(control: Control, _: argparse.Namespace) -> int:
    control.pause()
    print("paused; `puf-server resume` goes on")
    return Exit.OK


def _resume(control: Control, _: argparse.Namespace) -> int:
    control.resume()
    print("resumed")
    return Exit.OK


def _extend(control: Control, arguments: argparse.Namespace) -> int:
    print(f"{control.extend(arguments.rounds)} training rounds planned in all")
    return Exit.OK


def _stop(control: Control, _: argparse.Namespace) -> int:
    control.stop()
    print("stopping; the state stays and can be served again")
    return Exit.OK
