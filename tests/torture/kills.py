"""The plan of kills, and the federation that is killed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

from puf_lab.spec.federation import DataSpec, FederationSpec, ModelSpec
from puf_server.core.config import Forgetting, Recipe
from puf_server.failpoints import POINTS

__all__ = ["AGAIN", "KINDS", "LAST", "ONCE", "ROUNDS", "SETTING", "TARGET", "Kills", "scenarios", "setting", "thorough"]

TARGET = 3
# Failpoints that one request reaches once, and a restart does not reach again.
ONCE = frozenset({"commit.unlearn.after", "completion.after"})
# Operations that are repeated after an interruption: armed again in the next process.
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
# Executed, but the caller gets UNAVAILABLE and repeats the call: the result must be the same.
_DOUBTFUL = frozenset(p for p in POINTS if p.endswith(".after_persist")) | {
    "accept.after_persist",
    "upload.before_reply",
}
# Failpoints that only a request to be forgotten reaches.
_UNLEARNING = ("ticket.", "evaluation.", "measurement.", "commit.unlearn.", "commit.recover.", "completion.")
# Reached once in every round, so that the last time in training is predictable.
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
# A kill in the last round of training.
LAST = "last"


def _alone(name: str) -> bool:
    return not name.startswith(_UNLEARNING)


# Failpoints of training are armed one at a time: a kill elsewhere would restart their count, and reaching them would be luck.
# The federation that is killed fetches whole models: `tests/e2e/test_killed_differences.py` has the kills of the others.
_REACHED = tuple(name for name in POINTS if not name.startswith("difference."))
# The first and the second kill at one point take at most three rounds if the round is committed or closed before (four points),
# no round when clients join (two points), otherwise at most two. Two rounds for each point suffice, and two for the last round.
ROUNDS = 2 * sum(map(_alone, _REACHED)) + 2


def setting(rounds: int, method: str = "puf", **forgetting: Any) -> FederationSpec:
    policy = {"strength": "fixed", "kappa": 4.0, "max_recovery_rounds": 2, "recovery_ratio": 1.0, **forgetting}
    return FederationSpec(
        title="torture",
        data=DataSpec(clients=4, options={"per_client": 20}),
        recipe=Recipe(lr=0.1, batch_size=8, seed=7),
        rounds=rounds,
        forgetting=Forgetting(method=method, **policy),
    )


SETTING = setting(4)


def thorough() -> FederationSpec:
    """A federation with enough rounds for every failpoint.

    It learns slowly and forgets so strongly (half of its accuracy) that recovery takes at least three rounds: two for the kills
    in recovery, and one more.
    """
    forgetting = SETTING.forgetting.model_copy(
        update={"kappa": 16.0, "max_kappa": 16.0, "max_total_kappa": 16.0, "max_recovery_rounds": 4}
    )
    changed = {"recipe": Recipe(lr=0.02, batch_size=20, seed=7), "forgetting": forgetting}
    return setting(ROUNDS).model_copy(update=changed)


def adaptive() -> FederationSpec:
    """Adaptive strength, the default: several doses, each with an evaluation and measurements, then recovery."""
    return setting(20, strength="auto", max_doses=3, recovery_ratio=0.98, max_recovery_rounds=4)


def large() -> FederationSpec:
    """A model of 31 MB: an upload takes long enough that kills happen in its middle."""
    changed = setting(12, max_recovery_rounds=2)
    return changed.model_copy(update={"model": ModelSpec(options={"classes": 120_000})})


# Federations for kills at random moments.
KINDS: dict[str, Callable[[], FederationSpec]] = {"fixed": thorough, "adaptive": adaptive, "large": large}


def scenarios(points: list[str] | None = None) -> dict[str, list[str]]:
    """The actions of every failpoint in turn: a kill at its first hit, in another process at its second, and, if it is
    predictable, in the last round of training."""
    found = {}
    for name in _REACHED if points is None else points:
        second = "kill" if name in AGAIN else "1*unavailable->kill" if name in _DOUBTFUL else "1*off->kill"
        found[name] = ["kill"] if name in ONCE else ["kill", second]
        if name in _EVERY_ROUND:
            found[name].append(LAST)
    return found


@dataclass
class Kills:
    """The plan of kills: `moments` is the number of random kills, `armed` the failpoints of the server."""

    armed: dict[str, list[str]] = field(default_factory=dict)
    moments: int = 0
    seed: int = 0
    # The longest time between two kills.
    seconds: float = 2.5
    # The share of SIGSTOP with a later SIGCONT, instead of SIGKILL.
    pauses: float = 0.0
    # Kills reserved for the time in which a client is being forgotten; the others happen in training.
    reserve: int = 0
    # Clients to be killed in a round of this kind, with their assignments open: {"train": 0, "unlearn": 3}.
    in_round: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.random = Random(self.seed)
        self.done: Counter[str] = Counter()
        # SIGKILLs while the server was receiving an update.
        self.in_upload = 0

    @property
    def killed(self) -> int:
        """SIGKILLs so far, without pauses."""
        return sum(count for who, count in self.done.items() if not who.startswith("paused"))

    def text(self, left: Callable[[], tuple[int, bool]]) -> str:
        """The failpoints of the next process. `left`: training rounds left to sum, and whether one is closed."""
        found = {name: actions[0] for name, actions in self.armed.items() if not _alone(name)}
        here = {name: actions[0] for name, actions in self.armed.items() if _alone(name)}
        first = next(((name, action) for name, action in here.items() if action != LAST), None)
        if first is not None:
            found |= dict([first])
        elif here:
            rounds, closed = left()
            # All in the same round, one after the other: none restarts the count of another.
            found |= {name: f"{rounds - 1 - (closed and name == 'round.closed')}*off->kill" for name in here}
        return ";".join(f"{name}={action}" for name, action in found.items())

    def fired(self, name: str) -> None:
        self.done[name] += 1
        self.armed[name].pop(0)
        if not self.armed[name]:
            del self.armed[name]

    def victim(self, unlearning: bool) -> str:
        drawn = self.random.random()
        if self.random.random() < self.pauses:
            return "paused server" if drawn < 0.7 else "paused client"
        if unlearning and drawn < 0.6:
            return "unlearn command" if drawn < 0.3 else "target"
        return "fleet" if drawn > 0.97 else "client" if drawn > 0.85 else "server"
