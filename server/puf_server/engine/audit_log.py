"""The audit log as the operator sees it: entries as lines of the process log, damage as a trouble."""

from __future__ import annotations

from puf_common.logging import get_logger
from puf_server.core.state.state import AuditNote
from puf_server.engine.troubles import Trouble, Troubles
from puf_server.storage.state_store import Store

log = get_logger(__name__)

# Events that the operator must look into.
_ALARMS = {
    "ticket.failed": "A REQUEST TO BE FORGOTTEN HAS FAILED: nothing was forgotten",
    "ticket.reopened": "a client that was forgotten is known again; its request is open again",
    "federation.halted": "the federation has halted and waits for the operator",
}


def log_note(note: AuditNote, number: int) -> None:
    """Writes an entry to the process log, as an error where the operator must act."""
    if note.event in _ALARMS:
        log.error(_ALARMS[note.event], **note.facts)
    else:
        log.info(note.event, **{"round": number, **note.facts})


def report_damage(store: Store, troubles: Troubles) -> None:
    """Shows a damaged audit log. The federation is served: its state does not depend on the log."""
    fault = store.audit_fault()
    if fault:
        log.error("the audit log is damaged", why=fault)
        troubles.report(Trouble.AUDIT, f"{fault}; `puf-server audit verify` tells more, a backup has the entry")
