"""Deletes files that no record names."""

from __future__ import annotations

from collections.abc import Callable

from puf_server.core.state.models import ModelStatus
from puf_server.core.state.rounds import RoundPhase
from puf_server.core.state.state import State
from puf_server.core.unlearning.model_versions import differences
from puf_server.storage.layout import (
    DIFFERENCES,
    HISTORY,
    MODELS,
    SPOOL,
    arriving,
    difference_name,
    history_name,
    model_name,
    owner_of,
    spool_name,
)
from puf_server.storage.stored_files import StoredFiles


def delete_orphans(
    files: StoredFiles,
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
    listed = files.names()
    state = newest()
    wanted = _wanted(state)
    orphans = [name for name in listed if _known_as(name) not in wanted]
    if not everything:
        being_written = _being_written(state)
        orphans = [
            name
            for name in orphans
            if (is_gone(owner_of(name)) if name.endswith(".part") else not name.startswith(being_written))
        ]
    if orphans:
        files.delete(orphans)


def unfinished_elsewhere(files: StoredFiles, state: State, owner: str, gone: str) -> list[str]:
    """Files that processes other than `owner` did not finish and may contain what was forgotten.

    These are updates of `gone`, a client that has left, and files that no later step needs.
    """
    needed: tuple[str, ...] = (f"{MODELS}/v{state.newest + 1:06d}.",)
    needed += tuple(f"{DIFFERENCES}/v{base:06d}-v{version:06d}." for base, version in differences(state))
    if state.round is not None and state.round.phase is RoundPhase.FOLDING:
        needed += (f"{HISTORY}/",)
    found = []
    for name in files.names():
        if not name.endswith(".part") or owner_of(name) in ("", owner):
            continue
        unwanted = name.startswith(arriving(gone)) if name.startswith(f"{SPOOL}/") else not name.startswith(needed)
        if unwanted:
            found.append(name)
    return found


def _known_as(name: str) -> str:
    """The name that a record gives. The name of a difference also states kind and digest, after a dot."""
    return name.partition(".")[0] if name.startswith(f"{DIFFERENCES}/") else name


def _wanted(state: State) -> set[str]:
    """The files that records name."""
    current = state.round
    models = (m for m in state.models.values() if m.status is not ModelStatus.DELETED)
    wanted = {f"{MODELS}/{model_name(m.version, m.digest)}" for m in models}
    wanted |= {f"{SPOOL}/{spool_name(current, key)}" for key in current.received} if current is not None else set()
    wanted |= {f"{HISTORY}/{history_name(r)}" for r in state.history.values() if r.digest}
    for base, version in differences(state):
        digests = state.models[base].digest, state.models[version].digest
        wanted.add(f"{DIFFERENCES}/{difference_name((base, version), digests)}")
    return wanted


def _being_written(state: State) -> tuple[str, ...]:
    """How the names of files begin that are published and have no record yet."""
    found: tuple[str, ...] = (f"{MODELS}/v{state.newest + 1:06d}-",)
    if state.round is not None:
        # Updates that are not booked, and the history of a round that is not committed.
        found += tuple(f"{SPOOL}/{spool_name(state.round, missing.key, '')}" for missing in state.round.missing)
        found += (f"{HISTORY}/{state.round.number:08d}.",)
        # The step of a round that is not committed.
        found += (f"{DIFFERENCES}/v{state.round.base:06d}-v{state.newest + 1:06d}-",)
    return found
