"""Clients whose updates are refused again and again. A round must not wait for them, and the operator must see them."""

from __future__ import annotations

from collections.abc import Callable

from puf_common.errors import (
    Conflict,
    CutShort,
    InvalidArgument,
    InvalidUpdate,
    Mismatch,
    PufError,
    TooMuch,
    TransferCorrupted,
)
from puf_server.engine.troubles import Trouble, Troubles

# Refusals in a row after which a round does not wait for the client.
_MOST = 3
# How long the last refusal is shown.
_SHOWN_SECONDS = 600.0
# Errors that the same client will meet again. A round that is over or a full disk is no fault of the client.
_FAULTS = (Conflict, InvalidArgument, InvalidUpdate, Mismatch, TooMuch, TransferCorrupted)


class Refusals:
    """Use on the event loop only. `is_member` tells whether a name is a member now."""

    def __init__(self, troubles: Troubles, is_member: Callable[[str], bool]) -> None:
        self._troubles = troubles
        self._is_member = is_member
        # By client: refusals in a row, and the reason of the last one.
        self._counts: dict[str, int] = {}
        self._shown: dict[str, str] = {}

    def refused(self, name: str, error: PufError) -> bool:
        """Counts a refused update. True: the open round should no longer wait for this client."""
        if not isinstance(error, _FAULTS) or isinstance(error, CutShort):
            return False
        self._counts[name] = self._counts.get(name, 0) + 1
        if self._counts[name] < _MOST:
            return False
        del self._counts[name]
        self._shown[name] = error.message
        self._show()
        return True

    def accepted(self, name: str) -> None:
        self._counts.pop(name, None)
        if self._shown.pop(name, None) is not None:
            self._show()

    def drop_former_members(self) -> None:
        for name in [n for n in (*self._counts, *self._shown) if not self._is_member(n)]:
            self._counts.pop(name, None)
            if self._shown.pop(name, None) is not None:
                self._show()

    def _show(self) -> None:
        if not self._shown:
            self._troubles.clear(Trouble.CLIENTS)
            return
        told = ", ".join(f"{name} ({why})" for name, why in sorted(self._shown.items())[:5])
        more = f" and {len(self._shown) - 5} more" if len(self._shown) > 5 else ""
        self._troubles.report(Trouble.CLIENTS, f"updates are refused repeatedly: {told}{more}", _SHOWN_SECONDS)
