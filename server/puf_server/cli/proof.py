"""Commands about evidence and recovery: audit, backup, restore, forget and receipt."""

from __future__ import annotations

import argparse
import json
import time
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from puf_common.errors import UsageError
from puf_server.cli.operate import add_operator_command
from puf_server.cli.place import FILES_HELP, KEYS_HELP, METAVAR, directory, place

if TYPE_CHECKING:
    from puf_server.cli.operator_client import OperatorClient


def add_proof(commands: Any) -> None:
    """Adds the commands of this module."""
    audit = commands.add_parser("audit", help="show the audit log, or verify that it was not changed")
    audit.add_argument("action", choices=["verify", "show"])
    about = "the federation's state directory, or postgresql://USER@HOST/DATABASE; a server may be serving it"
    audit.add_argument("--state", required=True, metavar=METAVAR, help=about)
    audit.add_argument("--files", default="", metavar=METAVAR, help=FILES_HELP)
    audit.add_argument("--keys", type=Path, metavar="DIR", help=KEYS_HELP)
    about = "verify: a receipt whose entry must exist, to detect a truncated log; may be repeated"
    audit.add_argument("--receipt", type=Path, action="append", default=[], metavar="FILE", help=about)
    audit.add_argument("--last", type=_count, default=0, metavar="N", help="show: only the newest entries")
    audit.add_argument("--json", action="store_true", help="print JSON, for programs")
    audit.set_defaults(run=_audit)
    backup = commands.add_parser("backup", help="write a federation to one file, also while it is served")
    _add_state(backup, "the federation's state directory")
    backup.add_argument("--out", type=Path, required=True, metavar="FILE.tar", help="file to write; it holds secrets")
    backup.set_defaults(run=_backup)
    restore = commands.add_parser("restore", help="make a state directory from a backup")
    restore.add_argument("--from", dest="source", type=Path, required=True, metavar="FILE.tar", help="the backup")
    _add_state(restore, "new directory")
    about = "receipts (*.json) issued since the backup; the requests that it does not contain are opened again"
    restore.add_argument("--receipts", type=Path, metavar="DIR", help=about)
    about = "states that nothing was forgotten since the backup; audited"
    restore.add_argument("--no-receipts", action="store_true", help=about)
    restore.set_defaults(run=_restore)
    forget = add_operator_command(commands, "forget", "file a request to forget a client that is gone", _forget)
    forget.add_argument("client", metavar="CLIENT", help="the client's name")
    forget.add_argument("--reference", default="", metavar="TEXT", help="a case number or similar; stored and shown")
    about = "when the request reached you; the deadline counts from here"
    forget.add_argument("--received", type=_date, metavar="DATE", help=about)
    receipt = add_operator_command(commands, "receipt", "write the signed receipt of a completed ticket", _receipt)
    receipt.add_argument("ticket", metavar="TICKET", help="the ticket's id")
    receipt.add_argument("--out", type=Path, default=Path(), metavar="DIR", help="directory (default: here)")


def _add_state(command: argparse.ArgumentParser, about: str) -> None:
    command.add_argument("--state", type=directory, required=True, metavar="DIR", help=about)


def _count(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError
    return number


def _date(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def _audit(arguments: argparse.Namespace) -> None:
    from puf_server.maintenance import audit_reader

    where, database = place(arguments.state, arguments.files, arguments.keys)
    if arguments.action == "verify":
        head, receipts = audit_reader.verify(where, arguments.receipt, database)
        if arguments.json:
            print(json.dumps({"lines": head.number, "head": head.hash.hex(), "receipts": len(receipts)}))
            return
        checked = f"; {len(receipts)} receipt{'s' * (len(receipts) != 1)} checked" if receipts else ""
        print(f"the audit log is intact: {head.number} entries, none was changed{checked}")
        print(f"head {head.hash.hex()}")
        return
    for entry in audit_reader.show(where, arguments.last, database):
        facts = json.loads(entry.facts)
        if arguments.json:
            shown = {"line": entry.number, "at": entry.at, "event": entry.event, "facts": facts}
            print(json.dumps({**shown, "hash": entry.hash.hex()}))
        else:
            words = " ".join(f"{k}={v}" for k, v in facts.items() if v not in (None, ""))
            print(f"{entry.number:>6}  {_time(entry.at)}  {entry.event:<22}  {words}")


def _backup(arguments: argparse.Namespace) -> None:
    from puf_server.maintenance.backup import backup

    made = backup(arguments.state, arguments.out)
    print(f"{made.path}: {made.models} model{'s' * (made.models != 1)}, audit log up to entry {made.line}")
    print(f"sha256 {made.digest}")
    print("The file holds the signing key and models of clients that may ask to be forgotten.")
    print("Store it safely and delete it soon.")


def _restore(arguments: argparse.Namespace) -> None:
    from puf_server.maintenance.restore import restore

    if arguments.receipts is not None and arguments.no_receipts:
        raise UsageError("--receipts and --no-receipts exclude each other")
    done = restore(arguments.source, arguments.state, arguments.receipts, waived=arguments.no_receipts)
    print(
        f"federation {done.federation} restored to {arguments.state}: round {done.round}, as of {_time(done.made_at)}"
    )
    for path, _, why in done.receipts:
        print(f"{path.name}: {why}")
    if not done.receipts and not arguments.no_receipts:
        print("This backup does not contain requests that were completed after it; their clients are members again.")
        print("Serve it with --receipts DIR (receipts issued since), or with --no-receipts if there are none.")


def _forget(operator: OperatorClient, arguments: argparse.Namespace) -> None:
    reply = operator.forget(arguments.client, arguments.reference, arguments.received or 0.0)
    ticket = reply.ticket
    if reply.duplicate:
        print(f"{ticket.id} already asks for this; no new ticket is filed")
        return
    print(f"filed as {ticket.id}; {arguments.client} gets no more training work")
    print(f"last: {ticket.history[-1].note}")
    print(f"deadline {_time(ticket.deadline_at)}")


def _receipt(operator: OperatorClient, arguments: argparse.Namespace) -> None:
    from puf_common.receipts.page import write

    for path in write(operator.receipt(arguments.ticket), arguments.out):
        print(f"written: {path}")


def _time(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))
