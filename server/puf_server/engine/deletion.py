"""Deletes files that no record names. A deletion that fails is shown and repeated, and no receipt is issued until then."""

from __future__ import annotations

import threading
from collections.abc import Callable

from puf_common.logging import get_logger
from puf_server.core.state.state import State
from puf_server.engine.troubles import Trouble, Troubles
from puf_server.failpoints import hit
from puf_server.storage.state_database import DatabaseBusy
from puf_server.storage.state_store import Store

log = get_logger(__name__)


class Deletion:
    """Safe to use from any thread; one deletion at a time. `newest` gives the newest state."""

    def __init__(self, store: Store, troubles: Troubles, newest: Callable[[], State]) -> None:
        self._store = store
        self._troubles = troubles
        self._newest = newest
        self._deleting = threading.Lock()

    def run(self) -> None:
        try:
            with self._deleting:
                hit("orphans.before_delete")
                self._store.delete_orphans(self._newest)
                hit("orphans.after_delete")
            self._troubles.clear(Trouble.FILES)
        except (OSError, DatabaseBusy) as error:
            # The change that made them superfluous stands; the next deletion removes them.
            log.error("files not deleted yet", error=str(error))
            self._troubles.report(Trouble.FILES, f"files that no record names are not deleted, trying again: {error}")
