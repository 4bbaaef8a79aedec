"""Named points where a test can stop, break or slow down the server. Without PUF_FAILPOINTS they do nothing.

    PUF_TEST_FAILPOINTS=yes PUF_FAILPOINTS='spool.after_rename=1*off->kill;audit.write=2*enospc'

A failpoint has actions. Each action is for a number of hits (`3*enospc`) or for all that follow. After the last one
nothing happens. Actions:

    off            nothing
    kill           SIGKILL to this process at this instruction
    enospc, eio    the error of a full or a broken disk
    sleep(MS)      a pause
    unavailable    UNAVAILABLE for the caller, although the change may have been made

PUF_TEST_CLOCK names a file with a number of seconds. A server adds them to the system's clock, also when the file changes.
"""

from __future__ import annotations

import errno
import os
import re
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from puf_common.errors import Unavailable, UsageError
from puf_common.logging import get_logger

VARIABLE = "PUF_FAILPOINTS"
CLOCK = "PUF_TEST_CLOCK"
# Must also be "yes": one variable that is set by mistake must not make a production server fail.
SWITCH = "PUF_TEST_FAILPOINTS"

# Every failpoint, with the state of the server when it is hit.
POINTS: dict[str, str] = {
    "join.before_persist": "a client called Join; nothing is written",
    "join.after_persist": "the membership is written; the client has no reply",
    "spool.write": "a part of an update is about to be written",
    "upload.after_first_chunk": "the first chunk of an update is written, the others are not",
    "spool.before_fsync": "the update is verified and in the page cache; an error here is an error of fsync",
    "spool.after_fsync": "the update is on disk under a temporary name",
    "spool.after_rename": "the update has its final name; the directory is not synced",
    "accept.before_persist": "the update is durable; the state does not contain it",
    "accept.after_persist": "the state contains the update",
    "upload.before_reply": "the state contains the update, orphans are deleted; the client has no reply",
    "round.closed": "a closed round is written; nothing is summed",
    "fold.start": "summing begins",
    "model.write": "a part of the model is about to be written",
    "fold.middle": "half of the new model is written",
    "fold.end": "the new model is written, nothing is synced",
    "model.before_fsync": "as fold.end; an error here is an error of fsync",
    "model.after_fsync": "the model is on disk under a temporary name",
    "model.after_rename": "the model has its final name; the directory is not synced",
    "commit.train.before": "the model of a training round is durable, no record names it",
    "commit.train.after": "model, round and roster are committed",
    "commit.unlearn.before": "the unlearned model is durable, no record names it",
    "commit.unlearn.after": "model, round, roster and tickets are committed",
    "commit.recover.before": "the model of a recovery round is durable, no record names it",
    "commit.recover.after": "model, round and tickets are committed",
    "difference.made": "a difference between models has its name; no client has got it",
    "audit.write": "inside a transaction, before its entries of the audit log",
    "orphans.before_delete": "files that no record names are about to be deleted",
    "orphans.after_delete": "files that no record names are deleted",
    "ticket.before_persist": "a request to be forgotten arrived; nothing is written",
    "ticket.after_persist": "the ticket is written; the client has no reply",
    "evaluation.before_persist": "a client answered an evaluation; nothing is written",
    "evaluation.after_persist": "the answer is written",
    "measurement.before_persist": "a target reported a measurement; nothing is written",
    "measurement.after_persist": "the measurement is written",
    "completion.before": "a ticket is about to be completed; withdrawn models still exist",
    "completion.after": "the ticket is completed; no record names the withdrawn models, their files still exist",
}

_TERM = re.compile(r"(?:(\d+)\*)?(off|kill|enospc|eio|unavailable|sleep\((\d+)\))")
log = get_logger(__name__)


@dataclass
class _Term:
    action: str
    # Remaining hits; None: unlimited.
    left: int | None
    milliseconds: int = 0


_armed: dict[str, list[_Term]] = {}
_hits: dict[str, int] = {}
_lock = threading.Lock()


def hit(name: str) -> None:
    """Runs the action of this failpoint, if one is armed."""
    if _armed:
        _hit(name)


def arm(text: str) -> None:
    """Arms the failpoints in `text` and disarms all others. Raises UsageError for an unknown name."""
    armed = {}
    for entry in filter(None, (part.strip() for part in text.split(";"))):
        name, equals, actions = entry.partition("=")
        name = name.strip()
        if not equals:
            raise UsageError(f"{VARIABLE}: {entry!r} should be NAME=ACTION")
        if name not in POINTS:
            raise UsageError(f"{VARIABLE}: there is no failpoint {name!r}")
        armed[name] = [_term(word.strip()) for word in actions.split("->")]
    with _lock:
        _armed.clear()
        _hits.clear()
        _armed.update(armed)


def arm_from_environment() -> None:
    """Arms the failpoints of the environment when a server starts. Raises UsageError unless both variables are set."""
    text = os.environ.get(VARIABLE, "")
    if text.strip():
        _require_switch(VARIABLE)
        arm(text)
        log.warning("RUNNING WITH FAILPOINTS: this server fails on purpose; use it for tests only", failpoints=text)


def wall_clock() -> Callable[[], float]:
    """The system's clock. In a test that asks for it, with the seconds that a file states. Raises UsageError."""
    name = os.environ.get(CLOCK, "")
    if not name:
        return time.time
    _require_switch(CLOCK)
    log.warning("RUNNING WITH A WRONG CLOCK: for tests only", file=name)
    return lambda: time.time() + float(Path(name).read_text() or 0)


def _require_switch(variable: str) -> None:
    if os.environ.get(SWITCH) != "yes":
        raise UsageError(f"{variable} makes a server fail and is for tests only: unset it, or also set {SWITCH}=yes")


def disarm() -> None:
    """Disarms all failpoints."""
    arm("")


def hits(name: str) -> int:
    """How often an armed failpoint was hit."""
    return _hits.get(name, 0)


def _term(word: str) -> _Term:
    found = _TERM.fullmatch(word)
    if found is None:
        raise UsageError(
            f"{VARIABLE}: {word!r} is not an action; use [N*]off, kill, enospc, eio, unavailable or sleep(MS)"
        )
    count, action, milliseconds = found.groups()
    return _Term(action.partition("(")[0], int(count) if count else None, int(milliseconds or 0))


def _hit(name: str) -> None:
    assert name in POINTS, name
    with _lock:
        terms = _armed.get(name)
        if terms is None:
            return
        _hits[name] = _hits.get(name, 0) + 1
        while terms and terms[0].left == 0:
            terms.pop(0)
        if not terms:
            return
        term = terms[0]
        if term.left is not None:
            term.left -= 1
    if term.action == "off":
        return
    log.warning("failpoint", name=name, action=term.action)
    if term.action == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif term.action == "sleep":
        time.sleep(term.milliseconds / 1000)
    elif term.action == "unavailable":
        raise Unavailable(f"failpoint {name}")
    else:
        number = errno.ENOSPC if term.action == "enospc" else errno.EIO
        raise OSError(number, os.strerror(number))
