"""Names, keys and certificate serials that are refused although their certificate or token is valid.

    DIR/revoked.json    each with the time of its revocation

Commands write the file and the running server reads it: a revocation needs neither a connection nor a restart.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from puf_common.errors import NotAuthenticated, NotFound
from puf_common.network.certificates import Holder
from puf_server.admission.list_file import ListFile


class Revoked(BaseModel):
    """Refused names, keys (SHA-256) and serials, each with the time of its revocation."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    names: dict[str, float] = {}
    keys: dict[str, float] = {}
    serials: dict[str, float] = {}

    @property
    def empty(self) -> bool:
        return not (self.names or self.keys or self.serials)


class Revocations(ListFile[Revoked]):
    """The revocations of one federation. `value` is everything that is refused."""

    def __init__(self, directory: Path, clock: Callable[[], float] = time.time) -> None:
        super().__init__(directory / "revoked.json", Revoked)
        self._clock = clock

    def revoke(self, *, name: str = "", key: str = "", serial: str = "") -> None:
        """Refuses a client, every certificate of a key, or one certificate."""
        with self.locked() as known:
            self.write(_changed(known, lambda entries, one: {**entries, one: self._clock()}, name, key, serial))

    def restore(self, *, name: str = "", key: str = "", serial: str = "") -> None:
        """Removes a revocation; raises NotFound if there is none."""

        def without(entries: dict[str, float], one: str) -> dict[str, float]:
            if one not in entries:
                raise NotFound(f"{one} is not revoked")
            return {other: at for other, at in entries.items() if other != one}

        with self.locked() as known:
            self.write(_changed(known, without, name, key, serial))

    def require_not_revoked(self, name: str, holder: Holder | None = None) -> None:
        """Raises NotAuthenticated if the name is revoked, or the key or serial of its certificate."""
        now = self.value
        if name in now.names:
            raise NotAuthenticated(f"{name} was revoked by the operator", client=name)
        if holder is not None and (holder.serial in now.serials or holder.key in now.keys):
            raise NotAuthenticated(f"this certificate of {holder.name} was revoked by the operator", client=holder.name)


def _changed(known: Revoked, change: Callable[[dict[str, float], str], dict[str, float]], *given: str) -> Revoked:
    """The revocations after a change of those entries that are given: a name, a key, a serial."""
    old = (known.names, known.keys, known.serials)
    names, keys, serials = (change(entries, one) if one else entries for entries, one in zip(old, given, strict=True))
    return Revoked(names=names, keys=keys, serials=serials)
