"""The last models that a session fetched and its last updates, so that a repeated assignment needs no new training."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple

from puf_client.session.update import LocalUpdate

# The base of the round, and a second model for routines that need one.
MODELS_KEPT = 2
# A request for samples has two parts, with one update each.
_UPDATES_KEPT = 2


class FetchedModel(NamedTuple):
    payload: memoryview
    # As the server stated it.
    digest: bytes


class Recent:
    """Models by version and updates by training. The main thread uses it; another may call `outdate`."""

    def __init__(self) -> None:
        self._models: OrderedDict[int, FetchedModel] = OrderedDict()
        self._updates: OrderedDict[str, LocalUpdate] = OrderedDict()
        self._outdated = False

    def outdate(self) -> None:
        """The server was restored from a backup: a version or a round can be another one than before."""
        self._outdated = True

    def newest_model(self) -> tuple[int, FetchedModel] | None:
        """The newest version that is here, with its number."""
        self._drop_outdated()
        return max(self._models.items(), key=lambda item: item[0], default=None)

    def model(self, version: int, fetch: Callable[[], FetchedModel]) -> FetchedModel:
        """Returns a model. Fetches it if it is not here."""
        self._drop_outdated()
        found = self._models.pop(version, None) or fetch()
        self._models[version] = found
        while len(self._models) > MODELS_KEPT:
            self._models.popitem(last=False)
        return found

    def update(self, training_id: str) -> LocalUpdate | None:
        """Returns the update of a training; None without one."""
        self._drop_outdated()
        return self._updates.get(training_id)

    def add_update(self, training_id: str, update: LocalUpdate) -> None:
        if training_id:
            self._updates[training_id] = update
            while len(self._updates) > _UPDATES_KEPT:
                self._updates.popitem(last=False)

    def drop_models(self) -> None:
        self._models.clear()

    def drop_updates(self) -> None:
        self._updates.clear()

    def _drop_outdated(self) -> None:
        if self._outdated:
            self._outdated = False
            self._models.clear()
            self._updates.clear()
