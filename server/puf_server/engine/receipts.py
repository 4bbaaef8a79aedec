"""Issues the receipts of completed tickets and takes back receipts that this federation has signed."""

from __future__ import annotations

from puf_common.errors import Mismatch, NotYours, Unavailable
from puf_common.receipts import signed_receipt
from puf_common.receipts.signed_receipt import Receipt
from puf_common.receipts.signing_key import fingerprint
from puf_common.version import VERSION
from puf_server.core import tickets
from puf_server.core.state.state import State
from puf_server.core.unlearning import receipt_content, reopen
from puf_server.engine.engine import Engine
from puf_server.engine.troubles import Trouble


def issue(engine: Engine, ticket_id: str, name: str | None = None) -> bytes:
    """The signed receipt of a completed ticket. `name` restricts it to tickets of that client; None: the operator asks."""
    if Trouble.FILES in engine.troubles.open():
        raise Unavailable("files of withdrawn models or updates are not deleted yet; ask for the receipt again later")
    # The state first: the database then has at least the entries that belong to it.
    state = engine.state
    with engine.store.database.audit_log() as log:
        head, lines = log.head(), list(log.lines(*receipt_content.EVENTS))
    ticket = tickets.find(state, name, ticket_id)
    member = state.members.get(ticket.client)
    if engine.store.unfinished_elsewhere(state, "" if member is not None and member.session else ticket.client):
        raise Unavailable("another server has not deleted its unfinished files yet; ask for the receipt again later")
    content = receipt_content.build(
        state, engine.config, ticket, head=head, lines=lines, now=engine.clock(), software=VERSION
    )
    return signed_receipt.issue(content, engine.store.key)


def present(engine: Engine, file: bytes, name: str) -> tuple[bool, str, str]:
    """Whether a receipt of this federation opened its ticket again, why, and the ticket's id."""
    shown = read_own(file, engine.config.id, engine.store.key.public)
    if shown.client != name:
        raise NotYours(f"the receipt is not one of {name}", client=name)

    def change(state: State, now: float) -> tuple[State, tuple[bool, str, str]]:
        state, reopened, why = reopen.reopen(state, engine.config, shown.content, now)
        return state, (reopened, why, shown.ticket)

    return engine.call(change)


def read_own(file: bytes, federation: str, key: bytes) -> Receipt:
    """The receipt in `file`; raises unless this federation has signed it."""
    shown = signed_receipt.read(file)
    if shown.federation != federation:
        raise Mismatch(f"the receipt is of federation {shown.federation}, this is {federation}")
    if shown.key != key:
        raise Mismatch(
            f"the receipt is signed with the key {shown.key_fingerprint}, this federation's is {fingerprint(key)}"
        )
    return shown
