"""The client's data, model, task and device, and the computations on them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from puf_client.data import ClientData, DataContext, load_data
from puf_client.data.samples import RESIDENT_BYTES, Samples, batch, count, resident, select
from puf_client.options import LocalOptions
from puf_client.routines.context import Progress, RoutineContext
from puf_client.routines.evaluate import outputs, per_sample
from puf_client.routines.forward import Acceleration
from puf_client.routines.inputs import model_from
from puf_client.routines.measure import class_table
from puf_client.routines.per_sample import PerSample
from puf_client.routines.registry import (
    ROUTINES,
    WITHOUT_AUGMENTATION,
    Routine,
    RoutineInputs,
    routines_with,
    run_routine,
)
from puf_client.routines.train import TrainResult, TrainSettings
from puf_client.routines.train import prepare as prepare_torch
from puf_client.session.assignment import Assignment
from puf_client.tasks import BUILT_IN, Task, task_named
from puf_client.worker.devices import Choice, choose
from puf_common.config import plugins
from puf_common.errors import Mismatch, PufError, UsageError
from puf_common.models.module_tensors import base_digest, load_payload, manifest_of, mismatch
from puf_common.models.networks import build_any, built_in
from puf_common.tensors.base_model import require_base
from puf_common.tensors.chunks import Payload
from puf_common.tensors.manifest import MODEL, Manifest
from puf_common.v1 import federation_pb2 as pb

_TRIAL_SAMPLES = 2
Given = TypeVar("Given", bound=LocalOptions, contravariant=True)


class Load(Protocol[Given]):
    """Returns the trainer that the options describe, for a federation."""

    def __call__(self, options: Given, description: pb.DescribeReply, /) -> Trainer: ...


def prepare(options: LocalOptions, description: pb.DescribeReply, data: ClientData | None = None) -> Trainer:
    """Loads the data, unless given, and builds the model. Raises if the model differs from the federation's."""
    model_spec = options.model or _local(description.model, built_in(), "model")
    task_spec = options.task or _local(description.task, BUILT_IN, "task")
    choice = choose(options.device, index=options.shard_of[0], memory_fraction=options.memory_fraction)
    expected = Manifest.from_pb(description.manifest)
    if not options.model:
        _check_size(model_spec, description, expected)
    model = build_any(model_spec, description.model_options, _model_seed(description))
    base = require_same_model(model, description)
    own = next((spec for spec in (model_spec, task_spec, options.data) if ":" in spec), "")
    return Trainer(
        data=data or load_data(options.data, context_of(options)),
        model=model,
        manifest=expected,
        base_digest=base,
        task=task_named(task_spec),
        choice=choice,
        recipe=description.recipe,
        plugin_version=options.plugin_version or (plugins.plugin_version(plugins.load(own)) if own else ""),
        fresh=lambda seed: build_any(model_spec, description.model_options, seed),
        routines=routines_with(options.routine),
    )


def require_same_model(model: nn.Module, description: pb.DescribeReply) -> bytes:
    """Raises `Mismatch` unless the model is the federation's. Returns the digest of its frozen parameters, to join with.

    A federation that states no base model exchanges the frozen parameters, too: it was made by an older version, or from a
    file with all tensors.
    """
    whole = not description.base_digest
    base = b"" if whole else base_digest(model)
    if not base:
        require_base(base, description.base_digest, "the model here", seed=description.base_seed)
    here, expected = manifest_of(model, whole=whole), Manifest.from_pb(description.manifest)
    if here != expected:
        raise mismatch(here.tensors, expected)
    require_base(base, description.base_digest, "the model here", seed=description.base_seed)
    return base


def _model_seed(description: pb.DescribeReply) -> int:
    """The seed that builds the model. Frozen parameters must be those of the initial model; all others are replaced."""
    return description.base_seed if description.base_digest else description.recipe.seed


def _check_size(name: str, description: pb.DescribeReply, expected: Manifest) -> None:
    """Raises if the described model is larger than its manifest says. Builds it without memory for its tensors."""
    with torch.device("meta"):
        shapes = build_any(name, description.model_options, description.recipe.seed)
    size = sum(t.numel() * t.element_size() for t in shapes.state_dict().values())
    if size > expected.nbytes(MODEL):
        raise Mismatch(
            f"the federation's model {name} has {size} bytes, but its manifest {expected.nbytes(MODEL)}: ask its operator"
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


def _local(name: str, known: Collection[str], kind: str) -> str:
    """Returns a name from the network if it is built in. Such a name is never imported."""
    if name not in known:
        raise UsageError(
            f"the federation's {kind} {name!r} is not built in: name your code for it with --{kind} package.module:name"
        )
    return name


@dataclass(frozen=True)
class Trainer:
    data: ClientData
    model: nn.Module
    manifest: Manifest
    task: Task
    choice: Choice
    recipe: pb.Recipe
    plugin_version: str
    # Builds a model with the weights of another seed.
    fresh: Callable[[int], nn.Module]
    # What the server may request, by name.
    routines: Mapping[str, Routine] = field(default_factory=lambda: ROUTINES)
    # Of the frozen parameters, which stay here; empty if there are none.
    base_digest: bytes = b""
    # Larger data are not stacked on the device. A process with many clients gives each a share.
    resident_bytes: int = RESIDENT_BYTES

    def with_data(self, data: ClientData) -> Trainer:
        """The trainer of another client in this process, with the same model: all work begins with the server's weights."""
        return replace(self, data=data)

    def check_fit(self, *, labels: bool = True) -> None:
        """Raises `UsageError` if a batch of the data does not fit the model or the task. Changes no weights."""
        prepare_torch(self.choice.device, max(1, self.recipe.threads))
        for name, dataset in (("training", self.data.train_plain), ("hold-out", self.data.holdout)):
            if dataset is None:
                continue
            few = select(dataset, range(min(_TRIAL_SAMPLES, count(dataset))))
            try:
                for output, y in outputs(self.model, few, self.choice.device):
                    if labels:
                        self.task.loss(output, y)
            except PufError:
                raise
            except Exception as error:
                x, y = batch(few, range(count(few)))
                shapes = f"x of shape {tuple(x.shape)} and y of shape {tuple(y.shape)} {y.dtype}"
                reason = " ".join(str(error).split()) or type(error).__name__
                raise UsageError(
                    f"the {name} data, {shapes} for {count(few)} samples, does not fit the model and the task: {reason}"
                ) from error

    def run(
        self,
        assignment: Assignment,
        indices: NDArray[np.intp],
        progress: Progress | None = None,
        forget: NDArray[np.bool_] | None = None,
    ) -> TrainResult:
        """Runs the assignment's routine on the samples at `indices`, from the assignment's base model.

        `forget` marks the samples to forget, for routines that also take retained samples; None means all. Raises
        `Abandoned` when the server no longer wants the update.
        """
        inputs = self.inputs(assignment, indices, forget)
        return run_routine(assignment.routine, inputs, self.context(assignment, progress), self.routines)

    def inputs(
        self, assignment: Assignment, indices: NDArray[np.intp], forget: NDArray[np.bool_] | None = None
    ) -> RoutineInputs:
        """Returns what the assignment's routine works on. The model has the assignment's base weights afterwards."""
        load_payload(self.model, self.manifest, assignment.payload)
        plain = assignment.plain or assignment.routine in WITHOUT_AUGMENTATION
        second = assignment.aux_payload
        return RoutineInputs(
            model=self.model,
            samples=_part(self._plain if plain else self._train, indices),
            task=self.task,
            settings=settings_of(self.recipe, assignment.lr, assignment.epochs),
            options=assignment.options,
            outputs=assignment.outputs,
            forget=forget,
            second=None if second is None else model_from(self.model, self.manifest, second),
            fresh=self.fresh,
            plain=_part(self._plain, indices),
            holdout=self._holdout if self.data.holdout_samples else None,
            unseen=class_table(assignment.unseen) if assignment.unseen else None,
        )

    def context(self, assignment: Assignment, progress: Progress | None = None) -> RoutineContext:
        return RoutineContext(self.choice.device, assignment.stream, progress, assignment.abandoned)

    def evaluate_holdout(self, payload: Payload) -> PerSample:
        """Returns the values of a model on every hold-out sample."""
        return self._evaluate(payload, self._holdout)

    def evaluate_samples(self, payload: Payload, indices: NDArray[np.intp]) -> PerSample:
        """Returns the values of a model on training samples, without augmentation."""
        return self._evaluate(payload, _part(self._plain, indices))

    def _evaluate(self, payload: Payload, samples: Samples) -> PerSample:
        load_payload(self.model, self.manifest, payload)
        prepare_torch(self.choice.device, max(1, self.recipe.threads))
        return per_sample(self.model, samples, self.task, device=self.choice.device, how=acceleration_of(self.recipe))

    @cached_property
    def _plain(self) -> Samples:
        return resident(self.data.train_plain, self.choice.device, limit_bytes=self.resident_bytes)

    @cached_property
    def _train(self) -> Samples:
        return self.data.train if self.data.augments else self._plain

    @cached_property
    def _holdout(self) -> Samples:
        if self.data.holdout is None:
            raise UsageError("this client has no hold-out data")
        return resident(self.data.holdout, self.choice.device, limit_bytes=self.resident_bytes)


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


def acceleration_of(recipe: pb.Recipe) -> Acceleration:
    return Acceleration(channels_last=recipe.channels_last, amp=recipe.amp, compile=recipe.compile)


def _part(samples: Samples, indices: NDArray[np.intp]) -> Samples:
    return samples if len(indices) == count(samples) else select(samples, indices.tolist())
