"""The command that the operator should run next, for states in which the federation waits for the operator."""

from __future__ import annotations

import re

from puf_common.v1 import operator_pb2 as op

__all__ = ["hint"]

# A pattern in the server's sentence about what it waits for, and the command.
_HINTS = (
    (re.compile(r"\bhalted: "), "look into the cause, then run puf-server resume"),
    (re.compile(r"\bpaused by the operator\b"), "puf-server resume"),
    (re.compile(r"\bclients on hold: "), "look at puf-server clients, then run puf-server clients approve NAME"),
    (re.compile(r"\btickets on hold: "), "look at puf-server tickets, then run puf-server tickets approve TICKET"),
    (re.compile(r"\bmodel on hold: "), "run puf-server release, or puf-server rollback"),
)


def hint(reply: op.StatusReply) -> str:
    """The next command; empty if the federation does not wait for the operator."""
    return "; ".join(command for pattern, command in _HINTS if pattern.search(reply.waiting_for))
