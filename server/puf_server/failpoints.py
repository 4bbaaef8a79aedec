"""Named places where a test may stop, break or slow the server. Without PUF_FAILPOINTS every one of them is a no-op.

    PUF_TEST_FAILPOINTS=yes PUF_FAILPOINTS='spool.after_rename=1*off->kill;audit.write=2*enospc'

A failpoint is followed by actions, each for a number of hits (`3*enospc`) or for all that follow; behind the last one
nothing happens any more. Actions:

    off            nothing
    kill           SIGKILL to this process, at this very instruction
    enospc, eio    the error of a full or a broken disk
    sleep(MS)      a pause
    unavailable    what was done stays done, the caller hears UNAVAILABLE: acknowledged or not?
"""

from __future__ import annotations

import errno
import os
import re
import signal
import threading
import time
from dataclasses import dataclass

from puf_common.errors import Unavailable, UsageError
from puf_common.logging import get_logger

__all__ = ["POINTS", "SWITCH", "VARIABLE", "arm", "arm_from_environment", "disarm", "hit", "hits"]

VARIABLE = "PUF_FAILPOINTS"
# Must be set to "yes" beside it: a variable that leaked into production must not make a server fail on purpose.
SWITCH = "PUF_TEST_FAILPOINTS"

# Every failpoint and what has just happened, or is about to, when it is hit.
POINTS: dict[str, str] = {
    "join.before_persist": "a client asked to join; nothing is written",
    "join.after_persist": "its membership is written; it does not know yet",
    "spool.write": "a piece of an update is about to be written",
    "upload.after_first_chunk": "the first chunk of an update is written, the rest is not",
    "spool.before_fsync": "the update is verified and in the page cache; an error here is that of the fsync",
    "spool.after_fsync": "the update is on disk under a temporary name",
    "spool.after_rename": "it has its name; the directory is not synced",
    "booking.before": "the update is durable and not booked",
    "booking.after": "it is booked",
    "upload.before_reply": "it is booked and swept after; the client waits for the OK",
    "round.closed": "a round was closed and that is written; nothing is summed",
    "fold.start": "summing begins",
    "model.write": "a piece of the model is about to be written",
    "fold.middle": "half of the new model is written",
    "fold.end": "all of it is, nothing is synced",
    "model.before_fsync": "as fold.end; an error here is that of the fsync",
    "model.after_fsync": "the model is on disk under a temporary name",
    "model.after_rename": "it has its name; the directory is not synced",
    "commit.train.before": "the model of a training round is durable, no record names it",
    "commit.train.after": "model, round and roster have moved together",
    "commit.unlearn.before": "the unlearned model is durable, no record names it",
    "commit.unlearn.after": "model, round, roster and tickets have moved together",
    "commit.recover.before": "the model of a recovery round is durable, no record names it",
    "commit.recover.after": "model, round and tickets have moved together",
    "audit.write": "inside a transaction, before its lines of the audit log",
    "sweep.before": "files that no record names any more are about to be deleted",
    "sweep.after": "they are",
    "ticket.before_persist": "a request to be forgotten has arrived; nothing is written",
    "ticket.after_persist": "its ticket is written; the client does not know yet",
    "evaluation.before_persist": "a client has measured a model; nothing is written",
    "evaluation.after_persist": "its answer is written",
    "measurement.before_persist": "a leaver has measured its own data; nothing is written",
    "measurement.after_persist": "its figures are written",
    "completion.before": "a ticket is about to be completed; withdrawn models are still there",
    "completion.after": "it is completed; withdrawn models are named by nobody and not deleted",
}

_TERM = re.compile(r"(?:(\d+)\*)?(off|kill|enospc|eio|unavailable|sleep\((\d+)\))")
log = get_logger(__name__)


@dataclass
class _Term:
    action: str
    # How many hits it is for; None: all.
    left: int | None
    milliseconds: int = 0


_armed: dict[str, list[_Term]] = {}
_hits: dict[str, int] = {}
_lock = threading.Lock()


def hit(name: str) -> None:
    """Called where the registry says. Does nothing unless this point is armed."""
    if _armed:
        _hit(name)


def arm(text: str) -> None:
    """Arms what `text` says and nothing else; refuses names that the registry does not have."""
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
    """For a server that starts. Refuses unless it is asked for twice: nobody should run like this by accident."""
    text = os.environ.get(VARIABLE, "")
    if text.strip():
        if os.environ.get(SWITCH) != "yes":
            raise UsageError(f"{VARIABLE} makes a server fail and is for tests: unset it, or set {SWITCH}=yes, too")
        arm(text)
        log.warning("RUNNING WITH FAILPOINTS: this server is made to fail, use it for tests only", failpoints=text)


def disarm() -> None:
    arm("")


def hits(name: str) -> int:
    """How often an armed point was reached."""
    return _hits.get(name, 0)


def _term(word: str) -> _Term:
    found = _TERM.fullmatch(word)
    if found is None:
        raise UsageError(f"{VARIABLE}: {word!r} is no action; use [N*]off, kill, enospc, eio, unavailable or sleep(MS)")
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
