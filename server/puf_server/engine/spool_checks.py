"""Asks again for updates that are booked and not on disk as they were sent."""

from __future__ import annotations

import errno
from collections.abc import Mapping
from typing import TYPE_CHECKING

from puf_common.errors import Unavailable
from puf_common.logging import get_logger
from puf_server.core import rounds
from puf_server.core.state.rounds import Round
from puf_server.core.state.state import State

if TYPE_CHECKING:
    from puf_server.engine.engine import Engine

log = get_logger(__name__)


def may_miss_updates(error: Exception) -> bool:
    """Whether an error of a fold may come from a lost update. A full disk and a store that does not answer say nothing."""
    full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
    return isinstance(error, OSError) and not full and not isinstance(error, Unavailable)


def verify_spool(engine: Engine) -> None:
    """Reads all updates of the open round, outside the engine's lock, and asks again for damaged ones."""
    checked = engine.state.round
    damaged = engine.store.damaged_updates(checked)
    if damaged and checked is not None:
        lose(engine, checked, damaged)


def lose(engine: Engine, checked: Round, damaged: Mapping[str, str]) -> None:
    """Deletes the damaged updates of `checked` and asks for them again, each with the reason."""
    # Before the clients are asked: a new file has the same name.
    for key in damaged:
        engine.store.delete_update(checked, key)

    def change(state: State, now: float) -> State:
        for key, why in damaged.items():
            # The round may have changed meanwhile, and the file may be gone because of that.
            if state.round is not None and state.round.received.get(key) == checked.received[key]:
                log.error("an update is lost; its client is asked again", key=key, why=why)
                state = rounds.lose(state, key, now, why)
        return state

    engine.change(change)
