"""Whom to kill when, and the federation it happens to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from puf_lab.spec.federation import DataSpec, FederationSpec
from puf_server.core.config import Forgetting, Recipe
from puf_server.failpoints import POINTS

__all__ = ["AGAIN", "LAST", "ONCE", "ROUNDS", "SETTING", "TARGET", "Kills", "scenarios", "setting", "thorough"]

TARGET = 3
# What one client's erasure reaches once, and a restart does not reach again.
ONCE = frozenset({"commit.unlearn.after", "completion.after"})
# What is done once and, when it was interrupted, done again: armed anew in the next process.
AGAIN = frozenset(
    {
        "ticket.before_persist",
        "commit.unlearn.before",
        "commit.recover.before",
        "commit.recover.after",
        "measurement.before_persist",
        "completion.before",
    }
)
# Executed, but the caller hears UNAVAILABLE and asks again: the same must come out.
_DOUBTFUL = frozenset(p for p in POINTS if p.endswith(".after_persist")) | {
    "accept.after_persist",
    "upload.before_reply",
}
# What somebody's leaving reaches, and nothing else.
_LEAVING = ("ticket.", "evaluation.", "measurement.", "commit.unlearn.", "commit.recover.", "completion.")
# Reached once in every round, so that its last time in training can be told beforehand.
_EVERY_ROUND = frozenset(
    {
        "round.closed",
        "fold.start",
        "fold.middle",
        "fold.end",
        "model.before_fsync",
        "model.after_fsync",
        "model.after_rename",
        "commit.train.before",
        "commit.train.after",
    }
)
# Stands for the death in the last round of training.
LAST = "last"


def _alone(name: str) -> bool:
    return not name.startswith(_LEAVING)


# What is reached in training is armed one at a time: a death elsewhere would make it count anew, and whether it is
# reached would be luck. The first and the second death at one point take at most three rounds where the round is
# committed or closed before (four points), no round at all when clients join (two), otherwise at most two: two for each
# suffice. Two more, for the last one.
ROUNDS = 2 * sum(map(_alone, POINTS)) + 2


def setting(rounds: int, method: str = "puf") -> FederationSpec:
    return FederationSpec(
        title="torture",
        data=DataSpec(clients=4, options={"per_client": 20}),
        recipe=Recipe(lr=0.1, batch_size=8, seed=7),
        rounds=rounds,
        forgetting=Forgetting(method=method, kappa=4.0, max_recovery_rounds=2, recovery_ratio=1.0),
    )


SETTING = setting(4)


def thorough() -> FederationSpec:
    """Rounds enough for every failpoint. It learns slowly and forgets so strongly (half of what it knew) that recovery is
    far from its goal when it has had the rounds it is allowed: two for the deaths in recovery, two to spare."""
    forgetting = SETTING.forgetting.model_copy(
        update={"kappa": 16.0, "max_kappa": 16.0, "max_total_kappa": 16.0, "max_recovery_rounds": 4}
    )
    changed = {"recipe": Recipe(lr=0.02, batch_size=20, seed=7), "forgetting": forgetting}
    return setting(ROUNDS).model_copy(update=changed)


def scenarios(points: list[str] | None = None) -> dict[str, list[str]]:
    """For every failpoint what it does in turn: dies at its first hit, in another process at its second, and, where that
    can be told beforehand, in training's last round."""
    found = {}
    for name in POINTS if points is None else points:
        second = "kill" if name in AGAIN else "1*unavailable->kill" if name in _DOUBTFUL else "1*off->kill"
        found[name] = ["kill"] if name in ONCE else ["kill", second]
        if name in _EVERY_ROUND:
            found[name].append(LAST)
    return found


@dataclass
class Kills:
    """When to kill whom. `moments` is how many random ones; `armed` what the server does to itself."""

    armed: dict[str, list[str]] = field(default_factory=dict)
    moments: int = 0
    seed: int = 0
    # Longest time between two of them.
    seconds: float = 2.5
    # Kills kept for the time in which somebody is being forgotten; the rest falls on training.
    reserve: int = 0
    # Clients to be killed in the middle of a round of a kind, with their slots open: {"train": 0, "unlearn": 3}.
    in_round: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.random = Random(self.seed)
        self.done: Counter[str] = Counter()

    def text(self, left: Callable[[], tuple[int, bool]]) -> str:
        """What the next process is armed with. `left`: rounds of training to be summed, and whether one is closed."""
        found = {name: actions[0] for name, actions in self.armed.items() if not _alone(name)}
        here = {name: actions[0] for name, actions in self.armed.items() if _alone(name)}
        first = next(((name, action) for name, action in here.items() if action != LAST), None)
        if first is not None:
            found |= dict([first])
        elif here:
            rounds, closed = left()
            # All in the same round, one after the other: none makes another one count anew.
            found |= {name: f"{rounds - 1 - (closed and name == 'round.closed')}*off->kill" for name in here}
        return ";".join(f"{name}={action}" for name, action in found.items())

    def fired(self, name: str) -> None:
        self.done[name] += 1
        self.armed[name].pop(0)
        if not self.armed[name]:
            del self.armed[name]

    def victim(self, unlearning: bool) -> str:
        drawn = self.random.random()
        if unlearning and drawn < 0.6:
            return "leaver" if drawn < 0.3 else "target"
        return "fleet" if drawn > 0.97 else "client" if drawn > 0.85 else "server"
