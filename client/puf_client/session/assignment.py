"""Pieces of work as a training loop sees them, and the update that comes of one.

    for work in puf_client.connect("127.0.0.1:8000", name="clinic-7", samples=600):
        if isinstance(work, TrainTask):
            load(model, work.weights); train(model, lr=work.lr, epochs=work.epochs); work.submit(model)
        else:
            work.report(*measure(model, work.weights))

A loop trains by ordinary descent and never sees the sign of unlearning: `submit` scales.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from puf_common.errors import InvalidUpdate
from puf_common.seeds import derive
from puf_common.tensors.chunks import Payload
from puf_common.tensors.finite import all_finite
from puf_common.tensors.manifest import MODEL, UPDATE, Manifest, TensorSpec
from puf_common.v1 import federation_pb2 as pb
from puf_common.v1 import tickets_pb2

__all__ = [
    "BESIDE_THE_REST",
    "EvaluateTask",
    "Flag",
    "Part",
    "TrainTask",
    "Trained",
    "Work",
    "cut",
    "restricted",
    "update_payload",
]

Part = Literal["main", "retain", "forget"]
PARTS: Mapping[int, Part] = {pb.PART_MAIN: "main", pb.PART_RETAIN: "retain", pb.PART_FORGET: "forget"}

# With the part "forget" these routines take all of a client's samples, and treat those that are to be forgotten in another
# way than the rest.
BESIDE_THE_REST = frozenset({"guide", "aux_head"})


class Flag(threading.Event):
    """An event that can be handed out as a question: `should_stop=task.abandoned`."""

    def __call__(self) -> bool:
        return self.is_set()


@runtime_checkable
class HasStateDict(Protocol):
    """A torch module, or whatever else names its tensors the same way."""

    def state_dict(self) -> Mapping[str, Any]: ...


@dataclass(frozen=True)
class Trained:
    """An update before scaling, and what its header states about it."""

    payload: Payload
    samples: int
    train_loss: float
    samples_processed: int


@dataclass(frozen=True, eq=False)
class TrainTask:
    """Ordinary descent on one part of the client's data, starting at `weights`."""

    work: pb.TrainWork
    client: str
    recipe: pb.Recipe
    manifest: Manifest
    # Bytes of the base model in manifest order, read-only.
    payload: memoryview
    # The count that was announced last; for work that leaves it open.
    announced: int
    deliver: Callable[[pb.TrainWork, Trained], bool]
    refuse: Callable[[pb.TrainWork, str], None]
    # Set when the server no longer wants this: stop early and go on to the next work.
    abandoned: Flag = field(default_factory=Flag)
    # Bytes of a second model, for routines that need one.
    aux_payload: memoryview | None = None

    @property
    def round(self) -> int:
        return self.work.key.round

    @property
    def attempt(self) -> int:
        return self.work.key.attempt

    @property
    def part(self) -> Part:
        """Which samples: "main" all current ones, "retain" what a request leaves, "forget" what it names."""
        return PARTS[self.work.key.part]

    @property
    def routine(self) -> str:
        """What to run: "train" is ordinary descent; a loop of one's own that knows no other declines the rest."""
        return self.work.routine or "train"

    @property
    def options(self) -> Mapping[str, float]:
        """Numbers of the routine."""
        return self.work.options

    @property
    def layout(self) -> Manifest:
        """The tensors that come back: all of them, or those that the server named."""
        return restricted(self.manifest, self.work.outputs)

    @property
    def base_version(self) -> int:
        return self.work.base_version

    @property
    def lr(self) -> float:
        return self.work.lr

    @property
    def epochs(self) -> float:
        return self.work.epochs

    @property
    def scale(self) -> float:
        """What the update will be multiplied with; negative for a target. For the eyes only: `submit` applies it."""
        return self.work.scale

    @property
    def samples(self) -> int:
        """How many samples the update must state; 0 where the server leaves it open."""
        return self.work.samples

    @property
    def unlearns(self) -> bool:
        """Whether what is learnt here is what is to be forgotten."""
        return self.scale < 0 or (bool(self.ticket_id) and self.routine != "train")

    @property
    def ticket_id(self) -> str:
        return self.work.ticket_id

    @property
    def forget_request(self) -> str:
        """For the part "forget": the key of the request whose samples these are."""
        return self.work.forget_request

    @property
    def plain(self) -> bool:
        """Whether to train without augmentation."""
        return self.work.plain

    @cached_property
    def weights(self) -> dict[str, NDArray[Any]]:
        """The base model by tensor name: views that cannot be written to."""
        return self.manifest.views(self.payload, MODEL)

    def stream(self, epoch: int) -> int:
        """Seed of one epoch's random choices; the same for every attempt, in any process."""
        return derive(self.recipe.seed, "train", self.work.stream_round or self.round, self.client, self.part, epoch)

    def submit(
        self,
        result: HasStateDict | Mapping[str, Any] | Payload,
        *,
        samples: int | None = None,
        train_loss: float = float("nan"),
        samples_processed: int = 0,
    ) -> bool:
        """Sends what came of the training: a module or new weights by name, or the ready-made bytes of an update.

        Scales where this side has to. Returns whether the server took it; False means that it is no longer wanted.
        """
        stated = samples if samples is not None else (self.samples or self.announced)
        if self.samples and stated != self.samples:
            raise InvalidUpdate(
                f"round {self.round} asks for an update of {self.samples} samples, this one is of {stated}",
                expected=self.samples,
                stated=stated,
            )
        payload = cut(self.manifest, update_payload(self.manifest, self.payload, result), self.layout)
        return self.deliver(self.work, Trained(payload, stated, train_loss, samples_processed))

    def decline(self, reason: str) -> None:
        """Tells the server that this work will not be done, so that nobody waits for it."""
        self.refuse(self.work, reason)


@dataclass(frozen=True, eq=False)
class EvaluateTask:
    """Measure a model on the client's hold-out data."""

    work: pb.EvaluateWork
    manifest: Manifest
    payload: memoryview
    answer: Callable[[pb.EvaluateWork, tickets_pb2.EvaluationSums, tickets_pb2.EvaluationSums | None], bool]

    @property
    def version(self) -> int:
        return self.work.version

    @cached_property
    def weights(self) -> dict[str, NDArray[Any]]:
        return self.manifest.views(self.payload, MODEL)

    @property
    def training_side(self) -> bool:
        """Whether sums over the client's own training samples, without augmentation, are wanted, too."""
        return self.work.training_side

    def report(
        self,
        samples: int,
        loss_sum: float,
        score_sum: float,
        *,
        confidences: Sequence[int] = (),
        training: tickets_pb2.EvaluationSums | None = None,
    ) -> bool:
        """Sums over the hold-out samples; a score is in [0, 1]. Returns whether the server still wanted them.

        `confidences` are counts as `puf_common.receipts.evidence.histogram` makes them; `training` the same sums over the
        training
        samples, where they were asked for. A loop of one's own may leave both away: then a leaver knows less.
        """
        holdout = tickets_pb2.EvaluationSums(
            samples=samples, loss_sum=loss_sum, score_sum=score_sum, confidences=confidences
        )
        return self.answer(self.work, holdout, training)


Work = TrainTask | EvaluateTask


def update_payload(manifest: Manifest, base: Payload, result: HasStateDict | Mapping[str, Any] | Payload) -> Payload:
    """The update behind a trained model: differences of parameters, values of buffers. Bytes are taken as they are, and
    copied only where the caller could still change them."""
    if isinstance(result, (bytes, bytearray, memoryview)):
        if len(result) != manifest.nbytes(UPDATE):
            raise InvalidUpdate(f"the update has {len(result)} bytes, the manifest asks for {manifest.nbytes(UPDATE)}")
        return _finite(manifest, result if memoryview(result).readonly else bytearray(result))
    if not isinstance(result, Mapping) and hasattr(result, "named_parameters"):
        # A torch module: tied parameters, which its state names twice, travel once.
        from puf_common.models.registry import update_of

        return _finite(manifest, update_of(result, manifest, base))  # type: ignore[arg-type]
    arrays = result if isinstance(result, Mapping) else result.state_dict()
    _require_names(manifest, arrays)
    before = manifest.views(base, MODEL)
    payload = bytearray(manifest.nbytes(UPDATE))
    for slot, target in zip(manifest.slots(UPDATE), manifest.views(payload, UPDATE).values(), strict=True):
        spec = slot.spec
        new = _array(spec, arrays[spec.name])
        if spec.role == "parameter":
            np.subtract(
                new.astype(slot.dtype, copy=False), before[spec.name].astype(slot.dtype, copy=False), out=target
            )
        else:
            np.copyto(target, new, casting="same_kind")
    return _finite(manifest, payload)


def restricted(manifest: Manifest, names: Sequence[str]) -> Manifest:
    """The manifest of these tensors alone, in the model's order; all of them where none is named."""
    if not names:
        return manifest
    _require_known(manifest, names)
    return Manifest(tuple(t for t in manifest.tensors if t.name in set(names)))


def _require_known(manifest: Manifest, names: Sequence[str]) -> None:
    unknown = sorted(set(names) - {t.name for t in manifest.tensors})
    if unknown:
        raise InvalidUpdate(f"the server asks for tensor {unknown[0]}, which the model lacks", tensor=unknown[0])


def cut(manifest: Manifest, payload: Payload, layout: Manifest) -> Payload:
    """The part of an update that comes back."""
    if layout is manifest:
        return payload
    wanted = {t.name for t in layout.tensors}
    return bytearray().join(
        payload[s.offset : s.offset + s.nbytes] for s in manifest.slots(UPDATE) if s.spec.name in wanted
    )


def _require_names(manifest: Manifest, arrays: Mapping[str, Any]) -> None:
    expected = {t.name for t in manifest.tensors}
    missing = [name for name in expected if name not in arrays]
    unknown = [name for name in arrays if name not in expected]
    for names, text in ((missing, "lacks"), (unknown, "has, unlike the federation's model,")):
        if names:
            shown = ", ".join(sorted(names)[:5]) + (", ..." if len(names) > 5 else "")
            raise InvalidUpdate(f"the trained model {text} {shown}", tensor=sorted(names)[0])


def _array(spec: TensorSpec, value: Any) -> NDArray[Any]:
    """A numpy array of whatever the loop hands over; torch tensors are known by their manners, not imported."""
    if hasattr(value, "detach"):
        value = value.detach().cpu().numpy()
    array = np.asarray(value)
    if array.shape != spec.shape:
        raise InvalidUpdate(
            f"tensor {spec.name} has shape {list(array.shape)}, the federation's has {list(spec.shape)}",
            tensor=spec.name,
        )
    return array


def _finite(manifest: Manifest, payload: Payload) -> Payload:
    for spec, tensor in zip(manifest.tensors, manifest.views(payload, UPDATE).values(), strict=True):
        if spec.floating and not all_finite(tensor):
            raise InvalidUpdate(f"tensor {spec.name} is not finite: training diverged", tensor=spec.name)
    return payload
