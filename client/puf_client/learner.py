"""What a client brings to a federation: data, model, task and device, and the two routines on them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from puf_client import routines
from puf_client.data import ClientData, DataContext, load_data
from puf_client.devices import Choice, choose
from puf_client.options import LocalOptions
from puf_client.routines import PerSample, Samples, TrainResult, TrainSettings
from puf_client.tasks import Task, task_named
from puf_client.work import TrainTask
from puf_common import plugins
from puf_common.errors import UsageError
from puf_common.manifest import Manifest
from puf_common.models import build_any, built_in, load_payload, manifest_of
from puf_common.v1 import federation_pb2 as pb
from puf_common.wire import Payload

__all__ = ["ROUTINES", "Learner", "Routine", "context_of", "prepare", "settings_of"]

_BUILT_IN_TASKS = ("classification", "segmentation")


def prepare(options: LocalOptions, description: pb.DescribeReply) -> Learner:
    """Loads and builds everything, and makes sure that the model is the federation's."""
    model_spec = options.model or _local(description.model, built_in(), "model")
    task_spec = options.task or _local(description.task, _BUILT_IN_TASKS, "task")
    choice = choose(options.device, index=options.shard_of[0], memory_fraction=options.memory_fraction)
    model = build_any(model_spec, description.model_options, description.recipe.seed)
    manifest = manifest_of(model)
    Manifest.from_pb(description.manifest).require(manifest.fingerprint, "the model here")
    own = next((spec for spec in (model_spec, task_spec, options.data) if ":" in spec), "")
    return Learner(
        data=load_data(options.data, context_of(options)),
        model=model,
        manifest=manifest,
        task=task_named(task_spec),
        choice=choice,
        recipe=description.recipe,
        plugin_version=options.plugin_version or (plugins.plugin_version(plugins.load(own)) if own else ""),
    )


def context_of(options: LocalOptions) -> DataContext:
    shard, shards = options.shard_of
    return DataContext(
        shard=shard,
        shards=shards,
        partition=options.partition,
        seed=options.data_seed,
        directory=options.data_dir,
        options=options.data_option,
    )


def _local(name: str, known: Sequence[str], kind: str) -> str:
    """A name from the network is looked up among the built-in ones and never imported."""
    if name not in known:
        raise UsageError(
            f"the federation's {kind} {name!r} is not built in: name your own code for it with --{kind} "
            "package.module:name"
        )
    return name


@dataclass(frozen=True)
class Learner:
    """Trains and measures on this client's data."""

    data: ClientData
    model: nn.Module
    manifest: Manifest
    task: Task
    choice: Choice
    recipe: pb.Recipe
    plugin_version: str

    def run(
        self, work: TrainTask, indices: NDArray[np.intp], progress: Callable[[int, int], None] | None = None
    ) -> TrainResult:
        """Runs the routine that the work names, looked up among those that are known here."""
        routine = ROUTINES.get(work.routine)
        if routine is None:
            raise UsageError(
                f"this client does not know the routine {work.routine!r}, only {', '.join(ROUTINES)}: use a newer version"
            )
        return routine(self, work, indices, progress)

    def train(
        self,
        work: TrainTask,
        indices: NDArray[np.intp],
        progress: Callable[[int, int], None] | None = None,
    ) -> TrainResult:
        """Moves the model from the work's base; `routines.Abandoned` when the work is no longer wanted."""
        load_payload(self.model, self.manifest, work.payload)
        return routines.train(
            self.model,
            _part(self._plain if work.plain else self._train, indices),
            self.task,
            settings_of(self.recipe, work.lr, work.epochs),
            device=self.choice.device,
            stream=work.stream,
            progress=progress,
            should_stop=work.abandoned,
        )

    def look_at_holdout(self, payload: Payload) -> PerSample:
        """What a model does with every sample of the hold-out."""
        return self._look(payload, self._holdout)

    def look_at_samples(self, payload: Payload, indices: NDArray[np.intp]) -> PerSample:
        """The same for training samples, as they are without augmentation."""
        return self._look(payload, _part(self._plain, indices))

    def _look(self, payload: Payload, samples: Samples) -> PerSample:
        load_payload(self.model, self.manifest, payload)
        routines.prepare(self.choice.device, max(1, self.recipe.threads))
        return routines.per_sample(self.model, samples, self.task, device=self.choice.device)

    @cached_property
    def _plain(self) -> Samples:
        return routines.resident(self.data.train_plain, self.choice.device)

    @cached_property
    def _train(self) -> Samples:
        return self.data.train if self.data.augments else self._plain

    @cached_property
    def _holdout(self) -> Samples:
        if self.data.holdout is None:
            raise UsageError("this client has no hold-out data")
        return routines.resident(self.data.holdout, self.choice.device)


Routine = Callable[[Learner, TrainTask, NDArray[np.intp], Callable[[int, int], None] | None], TrainResult]

# What a server may ask for, by the names of the contract.
ROUTINES: dict[str, Routine] = {"train": Learner.train}


def settings_of(recipe: pb.Recipe, lr: float, epochs: float) -> TrainSettings:
    return TrainSettings(
        lr=lr,
        optimizer=recipe.optimizer,
        momentum=recipe.momentum,
        weight_decay=recipe.weight_decay,
        batch_size=recipe.batch_size,
        epochs=epochs,
        threads=max(1, recipe.threads),
    )


def _part(samples: Any, indices: NDArray[np.intp]) -> Samples:
    if len(indices) == len(samples):
        whole: Samples = samples
        return whole
    return routines.select(samples, indices.tolist())
