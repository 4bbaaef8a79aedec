"""Whom to kill when, and the federation it happens to."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from random import Random

from puf_lab.setting import Setting
from puf_server.core.config import Forgetting, Recipe
from puf_server.failpoints import POINTS

__all__ = ["AGAIN", "KAPPA", "ONCE", "SETTING", "TARGET", "Kills", "scenarios", "setting"]

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
_DOUBTFUL = frozenset(p for p in POINTS if p.endswith(".after_persist")) | {"booking.after", "upload.before_reply"}


# So much that recovery takes both rounds it is allowed.
KAPPA = 4.0


def setting(rounds: int, method: str = "puf") -> Setting:
    return Setting(
        title="torture",
        data_options={"per_client": "20"},
        clients=4,
        recipe=Recipe(lr=0.1, batch_size=8, seed=7),
        rounds=rounds,
        # As it is told to an engine in this process; nobody there measures, and nobody waits for it.
        forgetting=Forgetting(method=method, max_recovery_rounds=2, recovery_ratio=1.0, measure_seconds=0.0),
    )


SETTING = setting(4)


def scenarios(points: list[str] | None = None) -> dict[str, list[str]]:
    """For every failpoint what it does in turn: dies at its first hit, then in another process at its second."""
    found = {}
    for name in POINTS if points is None else points:
        second = "kill" if name in AGAIN else "1*unavailable->kill" if name in _DOUBTFUL else "1*off->kill"
        found[name] = ["kill"] if name in ONCE else ["kill", second]
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

    @property
    def text(self) -> str:
        return ";".join(f"{name}={actions[0]}" for name, actions in self.armed.items())

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
