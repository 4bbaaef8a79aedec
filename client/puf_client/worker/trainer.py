"""What a client brings to a federation: data, model, task and device, and the routines on them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from puf_client import routines
from puf_client.cli.options import LocalOptions
from puf_client.data import ClientData, DataContext, load_data
from puf_client.routines import PerSample, Samples, TrainResult, TrainSettings
from puf_client.routines.registry import ROUTINES, WITHOUT_AUGMENTATION, Job, Progress
from puf_client.session.assignment import TrainTask
from puf_client.tasks import Task, task_named
from puf_client.worker.devices import Choice, choose
from puf_common.config import plugins
from puf_common.errors import UsageError
from puf_common.models.registry import build_any, built_in, load_payload, manifest_of, payload_of
from puf_common.tensors.chunks import Payload
from puf_common.tensors.manifest import Manifest
from puf_common.v1 import federation_pb2 as pb

__all__ = ["Learner", "context_of", "prepare", "settings_of"]

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
        fresh=lambda seed: build_any(model_spec, description.model_options, seed),
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
    # Builds a model with the weights of another seed.
    fresh: Callable[[int], nn.Module]

    def run(
        self,
        work: TrainTask,
        indices: NDArray[np.intp],
        progress: Progress | None = None,
        forget: NDArray[np.bool_] | None = None,
    ) -> TrainResult:
        """Moves the model from the work's base by the routine that it names; `routines.Abandoned` when the work is no
        longer wanted. `forget` says which of the samples are to be forgotten, for routines that learn the others as they
        are; None: all of them.
        """
        routine = ROUTINES.get(work.routine)
        if routine is None:
            raise UsageError(
                f"this client does not know the routine {work.routine!r}, only {', '.join(ROUTINES)}: use a newer version"
            )
        load_payload(self.model, self.manifest, work.payload)
        chosen = _part(self._plain if work.plain or work.routine in WITHOUT_AUGMENTATION else self._train, indices)
        job = Job(
            work=work,
            model=self.model,
            manifest=self.manifest,
            samples=chosen,
            task=self.task,
            settings=settings_of(self.recipe, work.lr, work.epochs),
            forget=forget,
            fresh=self.fresh,
            device=self.choice.device,
            progress=progress,
        )
        return routine(job)

    def payload(self) -> Payload:
        """The model as it is now."""
        return payload_of(self.model, self.manifest)

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


def settings_of(recipe: pb.Recipe, lr: float, epochs: float) -> TrainSettings:
    return TrainSettings(
        lr=lr,
        optimizer=recipe.optimizer,
        momentum=recipe.momentum,
        weight_decay=recipe.weight_decay,
        batch_size=recipe.batch_size,
        epochs=epochs,
        threads=max(1, recipe.threads),
        channels_last=recipe.channels_last,
        amp=recipe.amp,
        compile=recipe.compile,
    )


def _part(samples: Any, indices: NDArray[np.intp]) -> Samples:
    if len(indices) == len(samples):
        whole: Samples = samples
        return whole
    return routines.select(samples, indices.tolist())
