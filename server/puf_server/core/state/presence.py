"""What is known about running workers and the disk. It ends with the process and is not stored."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from puf_server.core.state.state import State


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskSpace:
    """Bytes free on the disk of the state directory, and bytes of one update or model there."""

    free: int
    update: int

    def needed(self, updates: int) -> int:
        """Bytes of a round with so many updates: the updates and the new model."""
        return (updates + 1) * self.update


@dataclass(frozen=True, slots=True, kw_only=True)
class Presence:
    # When each worker was heard last. Only members that hold a session are present.
    seen: Mapping[str, float] = field(default_factory=dict)
    # What each worker says that it does.
    activity: Mapping[str, str] = field(default_factory=dict)
    # Tensor bytes sent since the last commit: for the open round and the evaluations before it.
    nbytes_down: int = 0
    # None: not known, and no round waits for it.
    disk: DiskSpace | None = None

    def heard(self, name: str, now: float, activity: str | None = None) -> Presence:
        """The presence after a call of this worker; None keeps its activity."""
        said = self.activity if activity is None else {**self.activity, name: activity[:200]}
        return replace(self, seen={**self.seen, name: now}, activity=said)

    def moved(self, seconds: float) -> Presence:
        """The presence after the clock was moved. Every worker is as silent as before."""
        return replace(self, seen={name: at + seconds for name, at in self.seen.items()})

    def sent(self, nbytes: int) -> Presence:
        return replace(self, nbytes_down=self.nbytes_down + nbytes)


def after_restart(state: State, now: float) -> Presence:
    """Every worker that holds a session counts as heard now, so that it gets the time to come back."""
    return Presence(seen={m.name: now for m in state.members.values() if m.session})


def settled(presence: Presence, before: State, after: State) -> Presence:
    """The presence that fits a changed state: without clients that left or were forgotten, counting from a commit."""
    if after.number != before.number:
        presence = replace(presence, nbytes_down=0)
    if after.members is before.members:
        return presence
    here = {name for name in presence.seen.keys() | presence.activity.keys() if _holds_session(after, name)}
    return replace(
        presence,
        seen={name: at for name, at in presence.seen.items() if name in here},
        activity={name: said for name, said in presence.activity.items() if name in here},
    )


def _holds_session(state: State, name: str) -> bool:
    member = state.members.get(name)
    return member is not None and bool(member.session)
