"""Commands of `puf-server` around proof: audit, backup, restore, forget, receipt."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from puf_common.config.exit_codes import Exit
from puf_common.errors import UsageError

if TYPE_CHECKING:
    from puf_common.config.settings import Parser
    from puf_server.cli.operator_client import Control

    AddOperator = Callable[[str, str, Callable[[Control, argparse.Namespace], int]], Parser]

__all__ = ["add_proof"]


def add_proof(commands: Any, operator: AddOperator) -> None:
    audit = commands.add_parser("audit", help="read the audit log, or check that nobody changed it")
    audit.add_argument("action", choices=["verify", "show"])
    _state(audit, "the federation's state directory; a server may be serving it")
    audit.add_argument(
        "--receipt",
        type=Path,
        action="append",
        default=[],
        metavar="FILE",
        help="verify: a receipt whose line must be there; finds a log that was cut off; may be repeated",
    )
    audit.add_argument("--last", type=_count, default=0, metavar="N", help="show: only the newest lines")
    audit.add_argument("--json", action="store_true", help="for programs")
    audit.set_defaults(run=_audit)

    backup = commands.add_parser("backup", help="write a federation to one file, also while it is served")
    _state(backup, "the federation's state directory")
    backup.add_argument("--out", type=Path, required=True, metavar="FILE.tar", help="file to write; it holds secrets")
    backup.set_defaults(run=_backup)

    restore = commands.add_parser("restore", help="make a state directory from a backup")
    restore.add_argument("--from", dest="source", type=Path, required=True, metavar="FILE.tar")
    _state(restore, "new directory")
    restore.add_argument(
        "--receipts",
        type=Path,
        metavar="DIR",
        help="receipts (*.json) handed out since; what the backup does not know of is forgotten again",
    )
    restore.add_argument(
        "--no-receipts", action="store_true", help="nothing was forgotten since the backup was made; this is audited"
    )
    restore.set_defaults(run=_restore)

    forget = operator("forget", "file a request to forget a client that is gone", _forget)
    forget.add_argument("client", metavar="CLIENT")
    forget.add_argument("--reference", default="", metavar="TEXT", help="case number or the like; stored and shown")
    forget.add_argument(
        "--received", type=_date, metavar="DATE", help="when the request reached you; the deadline counts from here"
    )
    receipt = operator("receipt", "write the signed receipt of a completed ticket", _receipt)
    receipt.add_argument("ticket", metavar="TICKET")
    receipt.add_argument("--out", type=Path, default=Path(), metavar="DIR", help="where to write (default: here)")


def _state(command: argparse.ArgumentParser, help_text: str) -> None:
    command.add_argument("--state", type=Path, required=True, metavar="DIR", help=help_text)


def _count(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError
    return number


def _date(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def _audit(arguments: argparse.Namespace) -> int:
    from puf_server.maintenance import audit_reader as audit

    if arguments.action == "verify":
        head, receipts = audit.verify(arguments.state, arguments.receipt)
        if arguments.json:
            print(json.dumps({"lines": head.number, "head": head.hash.hex(), "receipts": len(receipts)}))
            return Exit.OK
        known = f", and as {len(receipts)} receipt{'s' * (len(receipts) != 1)} know{'s' * (len(receipts) == 1)} it"
        print(f"the audit log is whole: {head.number} lines, each as it was written{known if receipts else ''}")
        print(f"head {head.hash.hex()}")
        return Exit.OK
    for line in audit.show(arguments.state, arguments.last):
        if arguments.json:
            told = {"line": line.number, "at": line.at, "event": line.event, "facts": json.loads(line.facts)}
            print(json.dumps({**told, "hash": line.hash.hex()}))
        else:
            facts = " ".join(f"{k}={v}" for k, v in json.loads(line.facts).items() if v not in (None, ""))
            print(f"{line.number:>6}  {_clock(line.at)}  {line.event:<22}  {facts}")
    return Exit.OK


def _backup(arguments: argparse.Namespace) -> int:
    from puf_server.maintenance.backup import backup

    made = backup(arguments.state, arguments.out)
    print(f"{made.path}: {made.models} model{'s' * (made.models != 1)}, audit log up to line {made.line}")
    print(f"sha256 {made.digest}")
    print(
        "It holds the signing key and models of clients that may ask to be forgotten: keep it safe, and not for long."
    )
    return Exit.OK


def _restore(arguments: argparse.Namespace) -> int:
    from puf_server.maintenance.backup import restore

    if arguments.receipts is not None and arguments.no_receipts:
        raise UsageError("--receipts and --no-receipts exclude each other")
    done = restore(arguments.source, arguments.state, arguments.receipts, waived=arguments.no_receipts)
    print(
        f"federation {done.federation} restored to {arguments.state}: round {done.round}, as of {_clock(done.made_at)}"
    )
    for path, _, why in done.receipts:
        print(f"{path.name}: {why}")
    if not done.receipts and not arguments.no_receipts:
        print("Requests that were completed after this backup are unknown to it, and their clients are known again.")
        print("Serve it with --receipts DIR (receipts handed out since), or with --no-receipts if there are none.")
    return Exit.OK


def _forget(control: Control, arguments: argparse.Namespace) -> int:
    reply = control.forget(arguments.client, arguments.reference, arguments.received or 0.0)
    ticket = reply.ticket
    if reply.duplicate:
        print(f"asked before as {ticket.id}; nothing new is filed")
        return Exit.OK
    print(f"filed as {ticket.id}; {arguments.client} gets no more training work")
    print(f"last: {ticket.history[-1].note}")
    print(f"deadline {_clock(ticket.deadline_at)}")
    return Exit.OK


def _receipt(control: Control, arguments: argparse.Namespace) -> int:
    from puf_common.receipts.page import write

    for path in write(control.receipt(arguments.ticket), arguments.out):
        print(f"written: {path}")
    return Exit.OK


def _clock(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))
