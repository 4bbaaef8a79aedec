"""Deletes files of the state directory that no record names."""

from __future__ import annotations

from puf_server.core.state.models import ModelStatus
from puf_server.core.state.state import State
from puf_server.storage.durable import Files, remove, sync_directory
from puf_server.storage.layout import Layout, history_name, model_name, spool_name

__all__ = ["delete_orphans"]


def delete_orphans(layout: Layout, files: Files, state: State, *, everything: bool = False) -> None:
    """Deletes files that no record of `state` names. `everything` includes files being written: only before serving."""
    models = {model_name(m.version, m.digest) for m in state.models.values() if m.status is not ModelStatus.DELETED}
    history = {history_name(r) for r in state.history.values() if r.digest}
    spool = set()
    being_written: tuple[str, ...] = (f"v{state.newest + 1:06d}-",)
    if state.round is not None:
        spool = {spool_name(state.round, key) for key in state.round.received}
        # Updates that are published and not booked yet, and the history of a round that is not committed yet.
        being_written += tuple(spool_name(state.round, assignment.key, "") for assignment in state.round.missing)
        being_written += (f"{state.round.number:08d}.",)
    for folder, wanted in ((layout.models, models), (layout.spool, spool), (layout.history, history)):
        if folder == layout.history and not folder.exists():
            continue
        deleted = False
        for name in files.listdir(folder):
            unfinished = name.endswith(".part") or name.startswith(being_written)
            if name not in wanted and (everything or not unfinished):
                remove(folder / name, files)
                deleted = True
        if deleted:
            sync_directory(folder, files)
