"""Several servers over one simulated store: lost connections, late commits, lost messages, the right to fold."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from puf_common.errors import Unavailable
from puf_server.core.state.state import State
from puf_server.storage.state_database import FoldLost, OneProcess, OthersReport, StateMoved, Watcher
from puf_server.storage.state_rows import difference
from tests.sim.disk import SimPart, SimSpool, SimStore
from tests.sim.facts import require

if TYPE_CHECKING:
    from tests.sim.server import SimServer
    from tests.sim.world import World

__all__ = ["Common", "View"]


class Common:
    """What the servers share beside the files."""

    def __init__(self, world: World, disk: SimStore) -> None:
        self.world = world
        self.disk = disk
        self.version = 0
        self.newest: State | None = None
        self.folds = 0
        self.holder: View | None = None
        self.beats: dict[str, int] = {}
        self.activity: dict[str, str] = {}
        self.views: list[View] = []

    def commit(self, known: int, before: State, after: State, now: float | None) -> bool:
        """One transaction. Its version must be the newest one; a crash can follow it."""
        require(known == self.version, "a commit on an older version was accepted")
        require(self.newest is None or _same(before, self.newest), "a commit was computed from another state")
        written: list[bool] = []
        try:
            written.append(self.disk.save(before, after, now))
        finally:
            # A crash right after the transaction does not undo it.
            if self.disk.saved is after:
                self.version += 1
                self.newest = replace(after, notes=(), stopping=False)
                self._notify()
        return written[0]

    def _notify(self) -> None:
        for view in self.views:
            if not self.world.strikes("lost_notice"):
                slow = 30.0 if self.world.strikes("slow_notice") else 0.05
                self.world.after(self.world.rng.uniform(0.0, slow), view.hear)

    def replaced(self, state: State) -> None:
        """An older state was restored."""
        self.version += 1
        self.newest = state


class View(OneProcess):
    """The store, and the database, of one server."""

    def __init__(self, common: Common, number: int) -> None:
        self.common = common
        self.name = f"server-{number}"
        self._starts = 0
        self.database = self
        self.server: SimServer | None = None
        self._known = 0
        self._watcher: Watcher | None = None
        self._heard: dict[str, int] = {}
        common.views.append(self)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.common.disk, name)

    @property
    def owner(self) -> str:  # type: ignore[override]
        """The id of the process. One that starts again gets another."""
        return f"{self.name}.{self._starts}"

    @property
    def spool(self) -> OwnSpool:
        return OwnSpool(self.common.disk.spool, self.owner)

    @property
    def joined(self) -> bool:  # type: ignore[override]
        return any(v is not self and v.server is not None and v.server.up for v in self.common.views)

    def load(self) -> State:
        self._known = self.common.version
        return self.common.disk.load()

    def newer(self, known: State) -> State | None:
        if self._known == self.common.version:
            return None
        self._known = self.common.version
        # Before the first commit only the version moves.
        return replace(self.common.newest or known, stopping=known.stopping)

    def save(self, before: State | None, after: State, now: float | None = None, fold: int | None = None) -> bool:
        common = self.common
        if before is None:
            return common.disk.save(before, after, now)
        if difference(before, after) is None and not after.notes:
            return False
        if fold is not None and fold != common.folds:
            raise FoldLost("another server folds")
        if self._known != common.version:
            raise StateMoved("another server has changed the state")
        if common.world.strikes("lost_connection"):
            # Nothing was stored, and what the lost connection still sends finds another version.
            common.version += 1
            raise StateMoved("the connection was lost")
        if common.world.strikes("late_commit"):
            delay = common.world.rng.uniform(0.1, 60.0)
            common.world.after(delay, self._late, self._known, before, after, now)
            raise Unavailable("whether the change was stored is not known")
        written = common.commit(self._known, before, after, now)
        self._known = common.version
        return written

    def _late(self, known: int, before: State, after: State, now: float | None) -> None:
        """A commit arrives whose caller was told that it is not known. It counts only on the version that it names."""
        if known == self.common.version:
            with self.common.world.without_faults():
                self.common.commit(known, before, after, now)

    def watch(self, watcher: Watcher) -> None:
        self._watcher, self._heard = watcher, dict(self.common.beats)

    def hear(self) -> None:
        if self._watcher is not None and self._serving():
            self._step(self._watcher.changed)

    def exchange(self) -> None:
        """Once in two seconds: what this server heard, and what the others did."""
        if self._watcher is None or self.common.world.strikes("no_exchange"):
            return
        common, watcher = self.common, self._watcher
        report = watcher.report()
        for name, said in report.workers.items():
            common.beats[name] = common.beats.get(name, 0) + 1
            common.activity[name] = said
        new = [n for n, beats in common.beats.items() if self._heard.get(n) != beats and n not in report.workers]
        self._heard = dict(common.beats)
        self._step(
            lambda: watcher.learn(OthersReport(dict.fromkeys(new, 0.0), {n: common.activity[n] for n in new}, 0))
        )

    def others_gone(self, owner: str) -> None:
        """Another process gave no sign of life for too long."""
        self.common.disk.spool.drop(owner)
        if self._watcher is not None and self._serving():
            self._step(self._watcher.gone)

    def _serving(self) -> bool:
        return self.server is not None and self.server.up and not self.server.frozen

    def _step(self, work: Callable[[], None]) -> None:
        assert self.server is not None
        self.server.attempt(work)

    def begin_fold(self) -> int | None:
        holder = self.common.holder
        if holder is not None and holder is not self and holder.server is not None and not holder.server.silent:
            return None
        self.common.holder = self
        self.common.folds += 1
        return self.common.folds

    def end_fold(self) -> None:
        if self.common.holder is self:
            self.common.holder = None

    def crashed(self) -> None:
        """Its connections end with the process."""
        self._starts += 1
        self._watcher = None
        self.end_fold()


class OwnSpool:
    """The spool as one server sees it."""

    def __init__(self, spool: SimSpool, owner: str) -> None:
        self._spool, self._owner = spool, owner
        self.files = spool.files

    def new(self, client: str = "", upload: str = "", nbytes: int = 0) -> SimPart:
        part = self._spool.new()
        self._spool.about[part.number] = (self._owner, client, upload, nbytes)
        return part

    def publish(self, file: SimPart, name: str) -> None:
        self._spool.publish(file, name)

    def exists(self, name: str) -> bool:
        return self._spool.exists(name)

    def _elsewhere(self, client: str) -> list[tuple[int, str, int]]:
        about = {n: a for n, a in self._spool.about.items() if n in self._spool.parts}
        return [(n, u, size) for n, (owner, c, u, size) in about.items() if c == client and owner != self._owner]

    def arriving_elsewhere(self, client: str) -> int:
        return sum(size for _, _, size in self._elsewhere(client))

    def part_elsewhere(self, client: str, upload: str) -> Part | None:
        found = [self._spool.parts[number] for number, name, _ in self._elsewhere(client) if name == upload]
        return Part(max(found, key=len)) if found else None


class Part:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self.nbytes = len(data)

    def __enter__(self) -> Part:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def read_into(self, offset: int, out: memoryview) -> None:
        out[:] = self._data[offset : offset + len(out)]


def _same(before: State, newest: State) -> bool:
    return replace(before, notes=(), stopping=False) == newest
