"""The place of a span: its trace, and its id in that trace.

The trace of a round and that of a request follow from the federation's id. Server and clients therefore agree on them
without a message, and a restarted process continues the same trace.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

# The W3C header that carries a span's place in the metadata of a call.
TRACEPARENT = "traceparent"
_WRITTEN = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}")


@dataclass(frozen=True, slots=True)
class Place:
    trace: int
    span: int

    def written(self, *, sampled: bool) -> str:
        """The value of the header `traceparent`."""
        return f"00-{self.trace:032x}-{self.span:016x}-{int(sampled):02x}"


def place_of_round(federation: str, number: int) -> Place:
    """The span of a round. All attempts of a round have the same."""
    return _place(federation, "round", str(number))


def place_of_ticket(federation: str, ticket: str) -> Place:
    """The span of a request to be forgotten."""
    return _place(federation, "ticket", ticket)


def read_place(text: str) -> Place | None:
    """The place in a header `traceparent`; None if the text is not valid."""
    found = _WRITTEN.fullmatch(text)
    place = Place(int(found[1], 16), int(found[2], 16)) if found else None
    return place if place is not None and place.trace and place.span else None


def _place(*words: str) -> Place:
    digest = hashlib.sha256("\0".join(("puf trace", *words)).encode()).digest()
    # Zero is no valid id.
    return Place(int.from_bytes(digest[:16]) or 1, int.from_bytes(digest[16:24]) or 1)
