"""Deletes files of the state directory that no record names."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from puf_server.core.state.models import ModelStatus
from puf_server.core.state.state import State
from puf_server.core.unlearning.model_versions import differences
from puf_server.storage.durable import Files, remove, sync_directory
from puf_server.storage.layout import Layout, difference_name, history_name, model_name, owner_of, spool_name


def delete_orphans(
    layout: Layout,
    files: Files,
    newest: Callable[[], State],
    is_gone: Callable[[str], bool] = lambda _: False,
    *,
    everything: bool = False,
) -> None:
    """Deletes files that no record names. `everything` includes files being written: only before serving.

    Otherwise a file that is being written is deleted if the process that wrote it is gone.

    `newest` gives the state. It is called after the files are listed: a file that is listed belongs to this state or to
    an earlier one, so that the state may change meanwhile.
    """
    optional = [folder for folder in (layout.history, layout.differences) if folder.exists()]
    folders = [layout.models, layout.spool, *optional]
    listed = {folder: files.listdir(folder) for folder in folders}
    state = newest()
    wanted, being_written = _wanted(layout, state), _being_written(state)
    for folder, names in listed.items():
        # The name of a difference states kind and digest of the file after a dot. No record has them.
        known = (name.partition(".")[0] if folder == layout.differences else name for name in names)
        orphans = [name for name, key in zip(names, known, strict=True) if key not in wanted[folder]]
        if not everything:
            orphans = [
                name
                for name in orphans
                if (is_gone(owner_of(name)) if name.endswith(".part") else not name.startswith(being_written))
            ]
        for name in orphans:
            remove(folder / name, files)
        if orphans:
            sync_directory(folder, files)


def _wanted(layout: Layout, state: State) -> dict[Path, set[str]]:
    """The files that records name, by folder."""
    current = state.round
    models = (m for m in state.models.values() if m.status is not ModelStatus.DELETED)
    return {
        layout.models: {model_name(m.version, m.digest) for m in models},
        layout.spool: {spool_name(current, key) for key in current.received} if current is not None else set(),
        layout.differences: {
            difference_name(pair, (state.models[pair[0]].digest, state.models[pair[1]].digest))
            for pair in differences(state)
        },
        layout.history: {history_name(r) for r in state.history.values() if r.digest},
    }


def _being_written(state: State) -> tuple[str, ...]:
    """How the names of files begin that are published and have no record yet."""
    found: tuple[str, ...] = (f"v{state.newest + 1:06d}-",)
    if state.round is not None:
        # Updates that are not booked, and the history of a round that is not committed.
        found += tuple(spool_name(state.round, assignment.key, "") for assignment in state.round.missing)
        found += (f"{state.round.number:08d}.",)
        # The step of a round that is not committed.
        found += (f"v{state.round.base:06d}-v{state.newest + 1:06d}-",)
    return found
