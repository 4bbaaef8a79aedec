"""`puf-server tokens`: makes, replaces and revokes clients' tokens."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from puf_common.config.parser import Parser
from puf_common.errors import UsageError
from puf_server.cli.connection import add_state, state_directory

if TYPE_CHECKING:
    from puf_server.admission.tokens import Tokens


def add_tokens(parser: Parser) -> None:
    """Adds the actions of `puf-server tokens`."""
    actions = parser.add_subparsers(title="actions", required=True, metavar="ACTION", parser_class=Parser)
    for name, about, run in (
        ("add", "make a client's token and show it once", _make),
        ("rotate", "replace a client's token; the old one is refused at once", _make),
        ("revoke", "refuse a client's token at once", _revoke),
        ("list", "list the clients with a token, and until when it is valid", _list),
    ):
        command: Parser = actions.add_parser(name, help=about, description=f"{about[0].upper()}{about[1:]}.")
        command.set_defaults(run=run, action=name)
        add_state(command)
        if name != "list":
            command.add_argument("name", metavar="NAME", help="the client's name in the federation")
        if run is _make:
            command.add_argument("--days", type=float, default=365, metavar="N", help="lifetime in days (365)")
            command.add_argument("--out", type=Path, metavar="FILE", help="write the token here instead of showing it")


def day(at: float) -> str:
    """A point in time as a local date."""
    return time.strftime("%Y-%m-%d", time.localtime(at))


def _make(arguments: argparse.Namespace) -> None:
    from puf_common.files.private import write_new

    name, replace = arguments.name, arguments.action == "rotate"
    if arguments.out is not None and arguments.out.exists():
        raise UsageError(f"{arguments.out} exists already and is not overwritten")
    tokens = _tokens(arguments)
    if replace is not (name in tokens.all()):
        raise UsageError(
            f"{name} has no token to replace: puf-server tokens add {name} makes one"
            if replace
            else f"{name} already has a token: puf-server tokens rotate {name} replaces it"
        )
    token = tokens.add(name, arguments.days, replace=replace)
    if arguments.out is not None:
        write_new(arguments.out, f"{token}\n".encode())
        print(f"written: {arguments.out}")
    else:
        print(token)
    sys.stderr.write(f"This is the only copy of the token. {name} needs it in its --token-file.\n")


def _revoke(arguments: argparse.Namespace) -> None:
    _tokens(arguments).revoke(arguments.name)
    print(f"the token of {arguments.name} is refused from now on")


def _list(arguments: argparse.Namespace) -> None:
    found = _tokens(arguments).all()
    for name, token in found.items():
        print(f"{name}  made {day(token.made_at)}  valid until {day(token.expires_at)}")
    if not found:
        print("no client has a token")


def _tokens(arguments: argparse.Namespace) -> Tokens:
    from puf_server.admission.tokens import Tokens

    return Tokens(state_directory(arguments))
