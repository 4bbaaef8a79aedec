"""FederationSpec: data, model, task, recipe, plan and device of one federation, stated once.

The server's configuration and the client's options are derived here. `command_line` turns both into flags.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from puf_client.data import DataContext
from puf_client.options import RunOptions
from puf_server.core.config import FederationConfig, Forgetting, Limits, Plan, Recipe
from puf_server.core.methods import method_of

# The client that provides the public shard.
DISTILLER = "distiller"
FederationKind = Literal["in-process", "processes"]
Durability = Literal["none", "full"]
KINDS: tuple[FederationKind, ...] = ("in-process", "processes")
# Bytes of all clients' data that are stacked on a device, and of those of the evaluation.
DATA_BYTES = 4 << 30


def client_name(shard: int) -> str:
    return f"client-{shard}"


class Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class DataSpec(Part):
    """Which data, and how it is split into one shard per client."""

    name: str = "digits"
    partition: str = "iid"
    clients: int = Field(10, ge=2)
    public: bool = False
    """Cuts one more shard. It is unlabeled and not used for training: it serves methods that distill."""
    options: dict[str, str | int | float | bool] = {}


class ModelSpec(Part):
    name: str = "digits-cnn"
    options: dict[str, str | int] = {}
    pretrained: bool = False
    """The model starts from a published checkpoint, which `FederationSpec.weights` names."""
    flops_per_sample: float = Field(0.0, ge=0)
    """F of the paper's appendix. With 0 the report shows no computation."""
    head_parameters: int = Field(0, ge=0)


class FederationSpec(Part):
    """A federation of the clients client-0 to client-(N-1), with one shard of the data each."""

    title: str = "lab"
    data: DataSpec = DataSpec()
    model: ModelSpec = ModelSpec()
    task: str = "classification"
    recipe: Recipe = Recipe()
    rounds: int = Field(30, ge=1)
    participation: float = Field(1.0, gt=0, le=1)
    forgetting: Forgetting = Forgetting()
    data_seed: int = 0
    init_seed: int | None = None
    """Seed of the initial weights. By default it is the seed of training, which is part of the recipe."""
    plan: dict[str, Any] = {}
    """Further fields of the server's plan, such as the server optimizer."""
    # The fields below may differ between machines. They do not change the result.
    kind: FederationKind = "in-process"
    durability: Durability = "none"
    """What a federation in one process stores until it is closed: "full" as a server does, "none" without syncs, and with
    the updates of the open round in memory. A run that is interrupted starts again in both cases. Processes always store
    everything."""
    device: str = "cpu"
    data_dir: Path | None = None
    sharing: int = Field(1, ge=1)
    """Processes of the lab that use the device. Each has an equal share of its memory."""
    weights: Path | None = None
    """Published checkpoint. Only a model that is `pretrained` uses it."""

    @field_validator("plan")
    @classmethod
    def _fits_the_server(cls, plan: dict[str, Any]) -> dict[str, Any]:
        """The fields as given, if the server accepts them. Rounds and participation are fields of their own here."""
        twice = sorted(plan.keys() & {"rounds", "participation"})
        if twice:
            raise ValueError(f"{twice[0]} is stated at the top level, not under [plan]")
        Plan.model_validate(plan)
        return plan

    @property
    def model_seed(self) -> int:
        """The seed that builds the model: its initial weights, and its frozen ones."""
        return self.recipe.seed if self.init_seed is None else self.init_seed

    @property
    def data_bytes(self) -> int:
        """Bytes of all clients' data that one process stacks on the device, and of those of the evaluation."""
        return DATA_BYTES if self.device == "cpu" else DATA_BYTES // self.sharing

    @property
    def clients(self) -> int:
        return self.data.clients

    @property
    def shards(self) -> int:
        return self.data.clients + self.data.public

    def context(self, shard: int) -> DataContext:
        """What a data function receives for this shard."""
        return DataContext(
            shard=shard,
            shards=self.shards,
            partition=self.data.partition,
            seed=self.data_seed,
            directory=self.data_dir,
            options=_texts(self.data.options),
        )

    def data_options(self) -> dict[str, Any]:
        """Data, split and device under the names of the client's options."""
        return {
            "data": self.data.name,
            "data_dir": self.data_dir,
            "data_option": _texts(self.data.options),
            "data_seed": self.data_seed,
            "partition": self.data.partition,
            "device": self.device,
            **self._own_code(),
            # The user starts the experiment with code of this machine, so clients may run the routines of its method.
            **({"routine": list(own)} if (own := method_of(self.forgetting).routines) else {}),
        }

    def _own_code(self) -> dict[str, str]:
        """The user's model and task. A client takes built-in ones from the federation's description."""
        return {key: name for key, name in (("model", self.model.name), ("task", self.task)) if ":" in name}

    def client_options(self, shard: int) -> RunOptions:
        """The options of the client with this shard."""
        public = shard >= self.clients
        role: dict[str, Any] = {"name": DISTILLER, "distiller": True} if public else {"name": client_name(shard)}
        return RunOptions(**self.data_options(), **role, shard=f"{shard}/{self.shards}")

    def server_config(
        self,
        *,
        clients: int | None = None,
        plan: Mapping[str, Any] | None = None,
        forgetting: Mapping[str, Any] | None = None,
    ) -> FederationConfig:
        """The server's configuration. The first round waits for `clients` clients, by default for all."""
        planned = {
            "rounds": self.rounds,
            "participation": self.participation,
            "start_clients": clients or self.clients,
            "evaluate_every": 0,
            "keep_models": 0,
            **self.plan,
            **(plan or {}),
        }
        return FederationConfig(
            id="f-" + self.title.lower().replace(" ", "-")[:40],
            title=self.title,
            model=self.model.name,
            model_options=_texts(self.model.options),
            task=self.task,
            recipe=self.recipe,
            plan=Plan.model_validate(planned),
            # No operator is present in an experiment: nothing may wait for approval, and a collapsed model is a result.
            forgetting=self.forgetting.model_copy(update={**(forgetting or {}), "collapse_ratio": 0.0}),
            limits=Limits(max_share=1.0, norm_factor=0.0, max_norm=1e30, forget_share=1.0),
        )

    def seeded(self, *, data: int, init: int, training: int) -> FederationSpec:
        """The same federation with other seeds of the data, of the initial weights and of training."""
        recipe = self.recipe.model_copy(update={"seed": training})
        return self.model_copy(update={"recipe": recipe, "data_seed": data, "init_seed": init})


def _texts(options: Mapping[str, object]) -> dict[str, str]:
    """Option values as the command line writes them."""
    return {key: str(value).lower() if isinstance(value, bool) else str(value) for key, value in options.items()}
