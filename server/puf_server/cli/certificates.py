"""`puf-server certs`: makes, renews, signs and revokes certificates."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from puf_common.config.parser import Parser
from puf_common.errors import UsageError
from puf_common.names import check_name
from puf_server.cli.connection import add_state, state_directory
from puf_server.cli.tokens import day

if TYPE_CHECKING:
    from puf_server.admission.revocations import Revocations
    from puf_server.pki.authority import Authority, Issued

_AUTHORITY_DAYS = 3650
_LEAF_DAYS = 365
_SERVE = (
    "next: puf-server serve --state DIR --tls-cert {issued.certificate} --tls-key {issued.key} --client-ca {dir}/ca.crt"
)
_SEND = "send both files and ca.crt to the client; with `puf-client enroll` the key need not be sent"


def add_certs(parser: Parser) -> None:
    """Adds the actions of `puf-server certs`."""
    actions = parser.add_subparsers(title="actions", required=True, metavar="ACTION", parser_class=Parser)

    def action(name: str, about: str, run: Callable[[argparse.Namespace], None]) -> Parser:
        command: Parser = actions.add_parser(name, help=about, description=f"{about[0].upper()}{about[1:]}.")
        command.set_defaults(run=run)
        return command

    init = action("init", "make an authority: the key that signs all other certificates", _init)
    _add_authority(init, _AUTHORITY_DAYS)
    init.add_argument("--title", default="PUF federation", metavar="TEXT", help="name of the authority, for people")
    server = action("server", "make the certificate and key of the server, or of its dashboard", _server)
    about = "host name or address that clients dial; may be repeated"
    server.add_argument("--name", action="append", default=[], metavar="HOST", help=about)
    about = "name of the files, if this authority makes more than one such certificate (server)"
    server.add_argument("--file", default="server", metavar="NAME", help=about)
    client = action("client", "make a client's certificate and key", partial(_issue, "client", _SEND))
    client.add_argument("name", metavar="NAME", help="the client's name in the federation")
    about = "make an operator's certificate and key, for commands from another machine"
    operator = action("operator", about, partial(_issue, "operator", ""))
    operator.add_argument("name", nargs="?", default="operator", metavar="NAME", help="the operator's name (operator)")
    about = "make a viewer's certificate and key, for a dashboard on another machine; a viewer can only read"
    viewer = action("viewer", about, partial(_issue, "viewer", ""))
    viewer.add_argument("name", nargs="?", default="viewer", metavar="NAME", help="the viewer's name (viewer)")
    sign = action("sign", "sign a request that `puf-client enroll` made; the key stays with the client", _sign)
    sign.add_argument("request", type=Path, metavar="REQUEST.csr", help="the signing request")
    sign.add_argument("--new-key", action="store_true", help="with --renew: accept another key than the name had")
    sign.add_argument("--name", default="", metavar="NAME", help="sign only if the request is for this client")
    for command in (server, client, operator, viewer, sign):
        _add_authority(command, _LEAF_DAYS)
        command.add_argument("--renew", action="store_true", help="replace the certificate; name and key stay the same")
    watch = action("watch", "sign requests that `puf-client enroll --through` places in a directory", _watch)
    _add_authority(watch, _LEAF_DAYS)
    watch.add_argument("requests", type=Path, metavar="DIR", help="an account that can write to it can enrol clients")
    watch.add_argument("--once", action="store_true", help="answer the requests that are there and end")
    for name, about, run in (
        ("revoke", "refuse a client, a key or one certificate at once", _revoke),
        ("restore", "remove a revocation", _restore),
    ):
        _add_subject(action(name, about, run))
    add_state(action("revoked", "list what is refused", _revoked))


def _add_authority(command: Parser, days: int) -> None:
    command.add_argument("--dir", type=Path, default=Path("certs"), metavar="DIR", help="the authority (certs)")
    command.add_argument("--days", type=float, default=days, metavar="N", help=f"lifetime in days ({days})")


def _add_subject(command: Parser) -> None:
    add_state(command)
    command.add_argument("name", nargs="?", default="", metavar="NAME", help="a client, with every credential it has")
    command.add_argument("--cert", type=Path, metavar="FILE", help="the key of this certificate, not the name")
    command.add_argument("--serial", default="", metavar="HEX", help="the certificate with this serial number only")


def _init(arguments: argparse.Namespace) -> None:
    from puf_server.pki.authority import Authority

    made = Authority.create(arguments.dir, arguments.title, arguments.days)
    print(f"authority made in {arguments.dir}, valid until {made.certificate.not_valid_after_utc:%Y-%m-%d}")
    print(f"every client needs {arguments.dir / 'ca.crt'}; keep {arguments.dir / 'ca.key'} secret, best offline")
    print(f"next: puf-server certs server --dir {arguments.dir} --name HOST")


def _server(arguments: argparse.Namespace) -> None:
    issued = _authority(arguments).server(arguments.name, arguments.days, renew=arguments.renew, file=arguments.file)
    advice = _SERVE if arguments.file == "server" and not arguments.renew else ""
    _report(issued, advice.format(issued=issued, dir=arguments.dir))


def _issue(role: str, advice: str, arguments: argparse.Namespace) -> None:
    """Issues a certificate with the authority's method for this role."""
    issued = getattr(_authority(arguments), role)(arguments.name, arguments.days, renew=arguments.renew)
    _report(issued, "" if arguments.renew else advice.format(issued=issued, dir=arguments.dir))


def _sign(arguments: argparse.Namespace) -> None:
    issued = _authority(arguments).sign(
        arguments.request, arguments.days, name=arguments.name, renew=arguments.renew, new_key=arguments.new_key
    )
    _report(issued, "send this file and ca.crt to the client")


def _authority(arguments: argparse.Namespace) -> Authority:
    from puf_server.pki.authority import Authority

    return Authority.open(arguments.dir)


def _report(issued: Issued, advice: str) -> None:
    print(f"written: {issued.certificate}{f' and {issued.key}' if issued.key else ''}")
    print(f"valid until {issued.not_after:%Y-%m-%d}, serial {issued.serial}")
    if advice:
        print(advice)


def _watch(arguments: argparse.Namespace) -> None:
    import signal
    import threading

    from puf_common.logging import configure
    from puf_server.pki.enrolment import answer_all

    configure()
    authority = _authority(arguments)
    stopped = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stopped.set())
    while not stopped.is_set():
        try:
            answer_all(authority, arguments.requests, arguments.days)
        except OSError as error:
            raise UsageError(f"cannot answer requests in {arguments.requests}: {error}") from None
        if arguments.once or stopped.wait(1.0):
            break


def _subject(arguments: argparse.Namespace) -> dict[str, str]:
    """What to revoke or restore: {"name": ...}, {"key": ...} or {"serial": ...}."""
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
        raise UsageError(f"--serial {arguments.serial!r} is not a hexadecimal number") from None


def _revoke(arguments: argparse.Namespace) -> None:
    subject = _subject(arguments)
    _revocations(arguments).revoke(**subject)
    print(f"{next(iter(subject.values()))} is refused from now on; a running server ends its calls within a second")


def _restore(arguments: argparse.Namespace) -> None:
    subject = _subject(arguments)
    _revocations(arguments).restore(**subject)
    print(f"{next(iter(subject.values()))} is no longer refused")


def _revocations(arguments: argparse.Namespace) -> Revocations:
    from puf_server.admission.revocations import Revocations

    return Revocations(state_directory(arguments))


def _revoked(arguments: argparse.Namespace) -> None:
    found = _revocations(arguments).value
    for kind, entries in (("client", found.names), ("key", found.keys), ("serial", found.serials)):
        for what, at in sorted(entries.items()):
            print(f"{kind}  {what}  since {day(at)}")
    if found.empty:
        print("nothing is revoked")
