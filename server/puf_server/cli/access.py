"""`puf-server certs` and `puf-server tokens`: who may come in; and how operator commands come in themselves."""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from puf_common.config.exit_codes import Exit
from puf_common.config.settings import Parser
from puf_common.errors import UsageError
from puf_common.names import check_name

if TYPE_CHECKING:
    from puf_server.cli.operator_client import Control

__all__ = ["add_certs", "add_operator_access", "add_tokens", "operator_control"]

_AUTHORITY_DAYS = 3650
_LEAF_DAYS = 365
# A command typed right after `puf-server serve &` or `docker compose up -d` finds the server still starting.
_PATIENCE = 5.0


def add_certs(parser: Parser) -> None:
    actions = parser.add_subparsers(title="actions", required=True, metavar="ACTION", parser_class=Parser)

    def action(name: str, about: str, run: Any, days: int | None = None) -> Parser:
        command: Parser = actions.add_parser(name, help=about, description=f"{about[0].upper()}{about[1:]}.")
        command.set_defaults(run=run)
        if days is not None:
            command.add_argument(
                "--dir", type=Path, default=Path("certs"), metavar="DIR", help="the authority's directory (certs)"
            )
            command.add_argument("--days", type=float, default=days, metavar="N", help=f"lifetime in days ({days})")
        return command

    def leaf(name: str, about: str, run: Any) -> Parser:
        command = action(name, about, run, _LEAF_DAYS)
        command.add_argument(
            "--renew", action="store_true", help="a new certificate for the same name and key, replacing the old one"
        )
        return command

    init = action("init", "make an authority: the key that signs all other certificates", _init, _AUTHORITY_DAYS)
    init.add_argument("--title", default="PUF federation", metavar="TEXT", help="name of the authority, for people")
    server = leaf("server", "make the server's certificate and key", _server)
    server.add_argument(
        "--name", action="append", default=[], metavar="HOST", help="host name or address clients dial; may be repeated"
    )
    client = leaf("client", "make a client's certificate and key", _client)
    client.add_argument("name", metavar="NAME", help="the client's name in the federation")
    operator = leaf("operator", "make an operator's certificate and key, for commands from another machine", _operator)
    operator.add_argument("name", nargs="?", default="operator", metavar="NAME", help="the operator's name (operator)")
    sign = leaf("sign", "sign a request that `puf-client enroll` made where the key stays", _sign)
    sign.add_argument("request", type=Path, metavar="REQUEST.csr", help="the signing request")
    sign.add_argument("--new-key", action="store_true", help="with --renew: the name gets another key than it had")
    sign.add_argument("--name", default="", metavar="NAME", help="sign only if the request is for this client")
    watch = action("watch", "sign what `puf-client enroll --through` hands in at a directory", _watch, _LEAF_DAYS)
    watch.add_argument(
        "desk", type=Path, metavar="DESK", help="the directory; whoever may write there becomes a client"
    )
    watch.add_argument("--once", action="store_true", help="answer what lies there and end")
    for name, about in (
        ("revoke", "refuse a client, a key or one certificate at once"),
        ("restore", "take a revocation back"),
    ):
        command = action(name, about, _revoke if name == "revoke" else _restore)
        _add_state(command)
        command.add_argument("name", nargs="?", default="", metavar="NAME", help="a client, whatever it shows")
        command.add_argument(
            "--cert", type=Path, metavar="FILE", help="this certificate only; its name can get another"
        )
        command.add_argument("--serial", default="", metavar="HEX", help="the certificate with this serial number only")
    _add_state(action("revoked", "list what is refused", _revoked))


def add_tokens(parser: Parser) -> None:
    actions = parser.add_subparsers(title="actions", required=True, metavar="ACTION", parser_class=Parser)
    for name, about, run in (
        ("add", "make a client's token and show it once", _token),
        ("rotate", "replace a client's token; the old one is refused at once", _token),
        ("revoke", "refuse a client's token at once", _token_revoke),
        ("list", "who has a token, and until when", _token_list),
    ):
        command: Parser = actions.add_parser(name, help=about, description=f"{about[0].upper()}{about[1:]}.")
        command.set_defaults(run=run, action=name)
        _add_state(command)
        if name != "list":
            command.add_argument("name", metavar="NAME", help="the client's name in the federation")
        if run is _token:
            command.add_argument("--days", type=float, default=365, metavar="N", help="lifetime in days (365)")
            command.add_argument("--out", type=Path, metavar="FILE", help="write the token here instead of showing it")


def add_operator_access(command: Parser) -> None:
    """Flags of every operator command. On the server's machine the state directory is enough."""
    if "--state" not in command._option_string_actions:
        _add_state(command)
    for flag, about in (
        ("--tls-ca", "from another machine: authority of the server's certificate"),
        ("--tls-cert", "an operator's certificate (puf-server certs operator)"),
        ("--tls-key", "its key"),
    ):
        command.add_argument(flag, type=Path, metavar="FILE", default=None, help=about)
    command.add_argument("--tls-server-name", metavar="HOST", default="", help="name in the server's certificate")


def operator_control(arguments: argparse.Namespace, default: str) -> Control:
    """Connects as the flags say, else through the state directory, else without TLS."""
    from puf_server.cli.operator_client import Control

    target = arguments.operator or os.environ.get("PUF_OPERATOR") or ""
    if arguments.tls_ca or arguments.tls_cert or arguments.tls_key:
        from puf_common.network.tls import ClientTls

        tls = ClientTls.load(arguments.tls_ca, arguments.tls_cert, arguments.tls_key, arguments.tls_server_name)
        return Control(target or default, tls, patience=_PATIENCE)
    state = arguments.state or os.environ.get("PUF_STATE")
    if state:
        return Control.of_state(Path(state), target, patience=_PATIENCE)
    return Control(target or default, patience=_PATIENCE)


def _add_state(command: Parser) -> None:
    command.add_argument(
        "--state", type=Path, metavar="DIR", help="the federation's state directory (or PUF_STATE)", default=None
    )


def _state(arguments: argparse.Namespace) -> Path:
    given = arguments.state or os.environ.get("PUF_STATE")
    if not given:
        raise UsageError("say which federation: set --state or PUF_STATE")
    state = Path(given)
    try:
        known = (state / "federation.json").exists()
    except PermissionError:
        raise UsageError(f"{state} belongs to somebody else: run this as the user who serves it") from None
    if not known:
        raise UsageError(f"{state} holds no federation; puf-server init makes one")
    return state


def _init(arguments: argparse.Namespace) -> int:
    from puf_server.pki.authority import Authority

    made = Authority.create(arguments.dir, arguments.title, arguments.days)
    print(f"authority made in {arguments.dir}, valid until {made.certificate.not_valid_after_utc:%Y-%m-%d}")
    print(f"{arguments.dir / 'ca.crt'} goes to every client; {arguments.dir / 'ca.key'} stays secret, best offline")
    print(f"next: puf-server certs server --dir {arguments.dir} --name HOST")
    return Exit.OK


def _server(arguments: argparse.Namespace) -> int:
    from puf_server.pki.authority import Authority

    issued = Authority.open(arguments.dir).server(arguments.name, arguments.days, renew=arguments.renew)
    _told(issued)
    if not arguments.renew:
        print(
            f"next: puf-server serve --state DIR --tls-cert {issued.certificate} --tls-key {issued.key} "
            f"--client-ca {arguments.dir / 'ca.crt'}"
        )
    return Exit.OK


def _client(arguments: argparse.Namespace) -> int:
    from puf_server.pki.authority import Authority

    _told(Authority.open(arguments.dir).client(arguments.name, arguments.days, renew=arguments.renew))
    if not arguments.renew:
        print("both files and ca.crt go to the client; with `puf-client enroll` no key need ever travel")
    return Exit.OK


def _operator(arguments: argparse.Namespace) -> int:
    from puf_server.pki.authority import Authority

    _told(Authority.open(arguments.dir).operator(arguments.name, arguments.days, renew=arguments.renew))
    return Exit.OK


def _sign(arguments: argparse.Namespace) -> int:
    from puf_server.pki.authority import Authority

    authority = Authority.open(arguments.dir)
    issued = authority.sign(
        arguments.request, arguments.days, name=arguments.name, renew=arguments.renew, new_key=arguments.new_key
    )
    _told(issued)
    print("this file and ca.crt go back to the client")
    return Exit.OK


def _watch(arguments: argparse.Namespace) -> int:
    import signal
    import threading

    from puf_common.logging import configure
    from puf_server.pki.authority import Authority
    from puf_server.pki.enrolment import answer_all

    configure()
    authority = Authority.open(arguments.dir)
    stopped = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stopped.set())
    while not stopped.is_set():
        try:
            answer_all(authority, arguments.desk, arguments.days)
        except OSError as error:
            raise UsageError(f"cannot answer requests in {arguments.desk}: {error}") from None
        if arguments.once or stopped.wait(1.0):
            break
    return Exit.OK


def _told(issued: Any) -> None:
    key = f" and {issued.key}" if issued.key else ""
    print(f"written: {issued.certificate}{key}")
    print(f"valid until {issued.not_after:%Y-%m-%d}, serial {issued.serial}")


def _subject(arguments: argparse.Namespace) -> dict[str, str]:
    if sum(map(bool, (arguments.name, arguments.cert, arguments.serial))) != 1:
        raise UsageError("say which one: a client's NAME, the key of a certificate with --cert FILE, or --serial HEX")
    if arguments.name:
        return {"name": check_name(arguments.name)}
    if arguments.cert:
        from puf_common.network.certificates import key_digest
        from puf_common.network.tls import read_certificates

        return {"key": key_digest(read_certificates(arguments.cert)[0])}
    try:
        return {"serial": f"{int(arguments.serial.replace(':', ''), 16):x}"}
    except ValueError:
        raise UsageError(f"--serial {arguments.serial!r} is no hexadecimal number") from None


def _revoke(arguments: argparse.Namespace) -> int:
    from puf_server.admission.revocations import Revocations

    whom = _subject(arguments)
    Revocations(_state(arguments)).revoke(**whom)
    print(f"{next(iter(whom.values()))} is refused from now on; a server that runs ends its calls within a second")
    return Exit.OK


def _restore(arguments: argparse.Namespace) -> int:
    from puf_server.admission.revocations import Revocations

    whom = _subject(arguments)
    Revocations(_state(arguments)).restore(**whom)
    print(f"{next(iter(whom.values()))} is no longer refused")
    return Exit.OK


def _revoked(arguments: argparse.Namespace) -> int:
    from puf_server.admission.revocations import Revocations

    found = Revocations(_state(arguments)).all()
    for kind, entries in (("client", found.names), ("key", found.keys), ("serial", found.serials)):
        for what, at in sorted(entries.items()):
            print(f"{kind}  {what}  since {_day(at)}")
    if found.empty:
        print("nobody is refused")
    return Exit.OK


def _token(arguments: argparse.Namespace) -> int:
    from puf_common.files.private import write_new
    from puf_server.admission.tokens import Tokens

    if arguments.out is not None and arguments.out.exists():
        raise UsageError(f"{arguments.out} exists already and is not overwritten")
    token = Tokens(_state(arguments)).add(arguments.name, arguments.days, replace=arguments.action == "rotate")
    if arguments.out is not None:
        write_new(arguments.out, f"{token}\n".encode())
        print(f"written: {arguments.out}")
    else:
        print(token)
    sys.stderr.write(f"the token of {arguments.name}: kept nowhere else, goes into its --token-file\n")
    return Exit.OK


def _token_revoke(arguments: argparse.Namespace) -> int:
    from puf_server.admission.tokens import Tokens

    Tokens(_state(arguments)).revoke(arguments.name)
    print(f"the token of {arguments.name} is refused from now on")
    return Exit.OK


def _token_list(arguments: argparse.Namespace) -> int:
    from puf_server.admission.tokens import Tokens

    found = Tokens(_state(arguments)).all()
    for name, token in found.items():
        print(f"{name}  made {_day(token.made_at)}  valid until {_day(token.expires_at)}")
    if not found:
        print("nobody has a token")
    return Exit.OK


def _day(at: float) -> str:
    return time.strftime("%Y-%m-%d", time.localtime(at))
