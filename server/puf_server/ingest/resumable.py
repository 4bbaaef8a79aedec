"""Uploads whose stream broke, kept for a while so that their clients can continue where they stopped.

In memory and in the spool, under names that no round knows: a restart throws them away, and so does whatever makes the
update unwanted, a request to be forgotten above all.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Protocol, TypeVar

__all__ = ["Parked"]

# One for each client that can upload at the same time, and as many again.
_MOST = 16
_SECONDS = 600.0


class Discardable(Protocol):
    def discard(self) -> None: ...


Item = TypeVar("Item", bound=Discardable)
Key = tuple[str, bytes, bytes]


class Parked:
    """By client, key of the work, and digest: never more than one for a client. For any thread."""

    def __init__(self) -> None:
        self._items: OrderedDict[Key, tuple[float, Discardable]] = OrderedDict()
        self._lock = threading.Lock()

    def put(self, key: Key, item: Discardable, now: float) -> None:
        self.drop(key[0])
        with self._lock:
            self._items[key] = (now, item)
            gone = [self._items.popitem(last=False)[1][1] for _ in range(len(self._items) - _MOST)]
        for old in gone:
            old.discard()

    def find(self, key: Key, kind: type[Item]) -> Item | None:
        with self._lock:
            found = self._items.get(key)
        return found[1] if found is not None and isinstance(found[1], kind) else None

    def take(self, key: Key, kind: type[Item]) -> Item | None:
        """The upload, which is the caller's from now on."""
        with self._lock:
            found = self._items.pop(key, None)
        return found[1] if found is not None and isinstance(found[1], kind) else None

    def drop(self, client: str) -> None:
        """For a client that begins anew."""
        with self._lock:
            items = [self._items.pop(key)[1] for key in list(self._items) if key[0] == client]
        for item in items:
            item.discard()

    def prune(self, wanted: Callable[[Discardable], bool], now: float) -> None:
        """Throws away what is too old or no longer wanted."""
        with self._lock:
            gone = [key for key, (at, item) in self._items.items() if now - at > _SECONDS or not wanted(item)]
            items = [self._items.pop(key)[1] for key in gone]
        for item in items:
            item.discard()
