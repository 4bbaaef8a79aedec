"""What an experiment is about: data, its split, the recipe and the plan. One value, for every engine."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from puf_client.data import DataContext
from puf_client.options import RunOptions
from puf_server.core.config import FederationConfig, Forgetting, Limits, Plan, Recipe

__all__ = ["DEMO", "DISTILLER", "Setting", "Spent", "client_name"]

# Who brings the public shard.
DISTILLER = "distiller"


def client_name(shard: int) -> str:
    return f"client-{shard}"


@dataclass(frozen=True)
class Spent:
    """What rounds have really cost: tensor bytes both ways, samples trained on, and how many rounds they were."""

    rounds: int = 0
    nbytes: int = 0
    samples: int = 0

    @classmethod
    def of(cls, rounds: Iterable[tuple[int, int, int]]) -> Spent:
        """From (bytes up, bytes down, samples) of each."""
        listed = list(rounds)
        return cls(len(listed), sum(up + down for up, down, _ in listed), sum(samples for *_, samples in listed))

    def __sub__(self, other: Spent) -> Spent:
        return Spent(self.rounds - other.rounds, self.nbytes - other.nbytes, self.samples - other.samples)


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Clients are client-0 to client-(N-1), one shard each."""

    title: str
    data: str = "digits"
    data_options: dict[str, str] = field(default_factory=dict)
    data_dir: Path | None = None
    data_seed: int = 0
    partition: str = "iid"
    clients: int = 10
    model: str = "digits-cnn"
    model_options: dict[str, str] = field(default_factory=dict)
    task: str = "classification"
    recipe: Recipe
    rounds: int
    participation: float = 1.0
    device: str = "cpu"
    weights: Path | None = None
    """A published checkpoint to start from, for models that have one."""
    forgetting: Forgetting = field(default_factory=Forgetting)
    # What the plan has beside rounds and clients.
    plan: dict[str, Any] = field(default_factory=dict)
    public: bool = False
    """The data is cut into one shard more, which nobody trains on: unlabeled, for methods that distill."""

    @property
    def shards(self) -> int:
        return self.clients + self.public

    def context(self, shard: int) -> DataContext:
        return DataContext(
            shard=shard,
            shards=self.shards,
            partition=self.partition,
            seed=self.data_seed,
            directory=self.data_dir,
            options=self.data_options,
        )

    def options(self, shard: int, **more: Any) -> RunOptions:
        """What `puf-client run` would be told for this shard."""
        return RunOptions(
            name=client_name(shard) if shard < self.clients else DISTILLER,
            distiller=shard >= self.clients,
            data=self.data,
            data_dir=self.data_dir,
            data_option=self.data_options,
            data_seed=self.data_seed,
            partition=self.partition,
            shard=f"{shard}/{self.shards}",
            device=self.device,
            **more,
        )

    def federation(self, *, clients: int | None = None, **plan: Any) -> FederationConfig:
        """The federation as the server is told about it. `clients` is how many to wait for."""
        return FederationConfig(
            id="f-" + self.title.lower().replace(" ", "-")[:40],
            title=self.title,
            model=self.model,
            model_options=self.model_options,
            task=self.task,
            recipe=self.recipe,
            plan=Plan.model_validate(
                {
                    "rounds": self.rounds,
                    "participation": self.participation,
                    "start_clients": clients or self.clients,
                    "evaluate_every": 0,
                    "keep_models": 0,
                    **self.plan,
                    **plan,
                }
            ),
            # Experiments are the operator's own: nothing waits for a word, whatever happens to a model.
            forgetting=self.forgetting.model_copy(update={"collapse_ratio": 0.0}),
            limits=Limits(max_share=1.0, norm_factor=0.0, max_norm=1e30, forget_share=1.0),
        )

    def seeded(self, seed: int) -> Setting:
        """The same with another seed, for data and training alike."""
        return replace(self, recipe=self.recipe.model_copy(update={"seed": seed}), data_seed=seed)


# Small, and yet there is something to forget: with noisy pixels a network remembers the images it was trained on,
# and a target's accuracy on its own data stays some twenty points above what it is on unseen data.
DEMO = Setting(
    title="demo",
    data_options={"noise": "1.0", "per_client": "60"},
    recipe=Recipe(lr=0.1, lr_decay=0.998, batch_size=10, epochs=1, seed=1),
    rounds=30,
    forgetting=Forgetting(max_recovery_rounds=20),
)
