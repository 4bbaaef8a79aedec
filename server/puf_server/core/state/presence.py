"""What is known about running workers and the disk. It ends with the process and is not stored."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from puf_server.core.state.state import State

# Processes hear of each other more often than that.
_EXCHANGED_SECONDS = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskSpace:
    """Bytes free on the disk of the state directory, and bytes of one update or model there."""

    free: int
    update: int
    # Files of at most that size that a round writes beside its model: the rounding error and the step of 8-bit steps.
    beside: int = 0

    def needed(self, updates: int) -> int:
        """Bytes of a round with so many updates: the updates, the new model and what is written beside it."""
        return (updates + 1 + self.beside) * self.update


@dataclass(frozen=True, slots=True, kw_only=True)
class Presence:
    # When this process heard each worker last. Only members that hold a session are present.
    seen: Mapping[str, float] = field(default_factory=dict)
    # When other processes did, by this process's clock. After a start every worker counts as heard.
    elsewhere: Mapping[str, float] = field(default_factory=dict)
    # When this process heard of the others last. It does not know who is silent since. Infinite: there are no others.
    exchanged_at: float = math.inf
    # What each worker says that it does.
    activity: Mapping[str, str] = field(default_factory=dict)
    # Tensor bytes sent since the last commit: for the open round and the evaluations before it.
    nbytes_down: int = 0
    # The same of other processes, as far as they have reported it.
    nbytes_elsewhere: int = 0
    # None: not known, and no round waits for it.
    disk: DiskSpace | None = None

    def heard(self, name: str, now: float, activity: str | None = None) -> Presence:
        """The presence after a call of this worker; None keeps its activity."""
        said = self.activity if activity is None else {**self.activity, name: activity[:200]}
        return replace(self, seen={**self.seen, name: now}, activity=said)

    def silent_seconds(self, name: str, now: float) -> float:
        """Seconds in which no process heard this worker; infinite if none ever did.

        Time in which the processes did not hear of each other is no silence.
        """
        last = max(self.seen.get(name, -math.inf), self.elsewhere.get(name, -math.inf))
        return min(now, self.exchanged_at + _EXCHANGED_SECONDS) - last

    def present(self) -> set[str]:
        """Every worker that was heard and has not left."""
        return {*self.seen, *self.elsewhere}

    def moved(self, seconds: float) -> Presence:
        """The presence after the clock was moved. Every worker is as silent as before."""
        return replace(
            self,
            seen={name: at + seconds for name, at in self.seen.items()},
            elsewhere={name: at + seconds for name, at in self.elsewhere.items()},
            exchanged_at=self.exchanged_at + seconds,
        )

    def exchanged(self, heard: Mapping[str, float], activity: Mapping[str, str], nbytes: int, now: float) -> Presence:
        """The presence after this process heard of the others: when they heard which worker, and what they have sent.

        After a longer time without that, every worker is as silent as it was before.
        """
        missed = now - self.exchanged_at - _EXCHANGED_SECONDS
        known = self.moved(missed) if 0 < missed < math.inf else self
        return replace(
            known,
            elsewhere={**known.elsewhere, **heard},
            activity={**known.activity, **activity},
            nbytes_elsewhere=nbytes,
            exchanged_at=now,
        )

    def sent(self, nbytes: int) -> Presence:
        return replace(self, nbytes_down=self.nbytes_down + nbytes)


def after_restart(state: State, now: float) -> Presence:
    """Every worker that holds a session counts as heard now, so that it gets the time to come back."""
    return Presence(elsewhere={m.name: now for m in state.members.values() if m.session})


def joined_elsewhere(presence: Presence, before: State, after: State, now: float) -> Presence:
    """The presence after another process changed the state: workers with a new session were heard."""
    if after.members is before.members:
        return presence
    known = before.members
    new = {
        name: now
        for name, m in after.members.items()
        if m.session and (name not in known or known[name].session != m.session)
    }
    return replace(presence, elsewhere={**presence.elsewhere, **new}) if new else presence


def settled(presence: Presence, before: State, after: State) -> Presence:
    """The presence that fits a changed state: without clients that left or were forgotten, counting from a commit."""
    if after.number != before.number:
        presence = replace(presence, nbytes_down=0, nbytes_elsewhere=0)
    if after.members is before.members:
        return presence
    gone = {name for name, old in before.members.items() if after.members.get(name) is not old}
    gone = {name for name in gone if not _holds_session(after, name)}
    if not gone:
        return presence
    return replace(
        presence,
        seen={name: at for name, at in presence.seen.items() if name not in gone},
        elsewhere={name: at for name, at in presence.elsewhere.items() if name not in gone},
        activity={name: said for name, said in presence.activity.items() if name not in gone},
    )


def _holds_session(state: State, name: str) -> bool:
    member = state.members.get(name)
    return member is not None and bool(member.session)
