"""The entry point of `puf-server`: parses the command line and runs one command."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence

from puf_common.config.command import guarded
from puf_common.config.exit_codes import Exit
from puf_common.config.parser import Parser
from puf_common.config.settings import add_settings, resolve
from puf_server.cli.certificates import add_certs
from puf_server.cli.operate import add_operator_commands
from puf_server.cli.proof import add_proof
from puf_server.cli.tokens import add_tokens

_HELP_ALL = "--help-all"
# Options that `--help` shows. `--help-all` also shows the others.
_COMMON = {
    "init": {
        "--config", "--state", "--files", "--title", "--model", "--model-options", "--model-file", "--task", "--recipe-optimizer",
        "--recipe-lr", "--recipe-batch-size", "--recipe-epochs", "--plan-rounds", "--plan-min-clients",
        "--plan-start-clients", "--plan-deadline-seconds", "--plan-shards", "--forgetting-method", "--forgetting-kappa",
        "--forgetting-deadline-days",
    },
    "serve": {
        "--config", "--state", "--files", "--listen", "--operator", "--tls-cert", "--tls-key", "--client-ca", "--insecure",
        "--metrics", "--workers", "--track",
        "--receipts", "--no-receipts", "--announce", "--log-level", "--log-format",
    },
}  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code."""
    # gRPC logs a port in use on its own; our message also says what to do.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    return guarded(lambda: _main(sys.argv[1:] if argv is None else list(argv)))


def _main(argv: list[str]) -> int:
    arguments = _parser(argv).parse_args(argv)
    run: Callable[[argparse.Namespace], int | None] = arguments.run
    return run(arguments) or Exit.OK


def _parser(argv: list[str], *, whole: bool = False) -> Parser:
    """Returns the parser. Only the command in `argv` has its flags, or all of them in the whole parser."""
    parser = Parser(prog="puf-server", description="The server of a federation that can forget.")
    parser.add_version()
    parser.add_completion(lambda: _parser([_HELP_ALL], whole=True))
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND", parser_class=Parser)
    chosen = next((word for word in argv if not word.startswith("-")), "")

    init = commands.add_parser("init", help="make a federation: state directory and initial model")
    init.set_defaults(run=_init)
    serve = commands.add_parser("serve", help="serve a federation until it is stopped")
    serve.set_defaults(run=_serve)
    # Importing pydantic models is slow, so only the chosen command does it.
    if whole or chosen == "init":
        from puf_server.cli.init import InitSettings

        add_settings(init, InitSettings, nested=True)
        _shorten_help(init, "init", argv)
    if whole or chosen == "serve":
        from puf_server.cli.serve import ServeSettings

        add_settings(serve, ServeSettings, nested=True)
        _shorten_help(serve, "serve", argv)
    dashboard = commands.add_parser("dashboard", help="show a federation in the browser, read-only")
    dashboard.set_defaults(run=_dashboard)
    if whole or chosen == "dashboard":
        from puf_server.cli.dashboard import DashboardSettings

        add_settings(dashboard, DashboardSettings)

    methods = commands.add_parser("methods", help="list the methods of forgetting and what each of them needs")
    methods.add_argument("--markdown", action="store_true", help="as a Markdown table")
    methods.set_defaults(run=_methods)
    add_certs(commands.add_parser("certs", help="make, renew and revoke certificates"))
    add_tokens(commands.add_parser("tokens", help="make, rotate and revoke clients' tokens"))
    add_operator_commands(commands)
    add_proof(commands)
    return parser


def _shorten_help(command: Parser, name: str, argv: list[str]) -> None:
    """Hides rare options from --help; --help-all shows them."""
    command.usage = f"puf-server {name} --state DIR [OPTION ...]"
    command.add_argument(_HELP_ALL, action="help", help="show all options and exit")
    if _HELP_ALL in argv:
        return
    for group in command._action_groups:
        for action in group._group_actions:
            if not {"--help", _HELP_ALL, *_COMMON[name]}.intersection(action.option_strings):
                action.help = argparse.SUPPRESS
        if all(action.help is argparse.SUPPRESS for action in group._group_actions):
            group.title = group.description = None


def _init(arguments: argparse.Namespace) -> None:
    from puf_server.cli.init import InitSettings, init
    from puf_server.cli.place import place
    from puf_server.storage.state_store import key_fingerprint

    settings = resolve(InitSettings, arguments)
    config, manifest = init(settings)
    directory, database = place(settings.state, settings.files, settings.keys)
    print(f"federation {config.id} made in {directory}{', its state in PostgreSQL' if database else ''}")
    print(f"model {config.model}: {manifest.parameters:,} parameters, fingerprint {manifest.fingerprint.hex()[:16]}")
    if config.base_digest:
        print(
            f"base model {config.base_digest[:16]}: frozen parameters stay at the clients, which must have the same ones"
        )
    print(f"receipts are signed with the key {key_fingerprint(directory)}")
    where: object = directory
    if database:
        files = f"{settings.files} --keys {directory}" if settings.keys else directory
        where = f"postgresql://... --files {files}"
    print(f"next: puf-server serve --state {where} --insecure")


def _serve(arguments: argparse.Namespace) -> int:
    from puf_server.cli.serve import ServeSettings, run

    return run(resolve(ServeSettings, arguments))


def _dashboard(arguments: argparse.Namespace) -> None:
    from puf_server.cli.dashboard import DashboardSettings, run

    run(resolve(DashboardSettings, arguments))


def _methods(arguments: argparse.Namespace) -> None:
    if arguments.markdown:
        from puf_server.core.methods.comparison import markdown

        print(markdown(), end="")
    else:
        from puf_server.cli import tables

        tables.methods()
