"""Work that the server requests from a client: an assignment to train, or a request to evaluate.

`puf_client.api` builds the jobs of the user's training loops on it, `puf_client.worker` the worker. Training is ordinary
descent and does not handle the sign of unlearning: `submit` scales. The session declines work that its caller does not
support before the caller sees it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Generic, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from puf_client.session.update import LocalUpdate, TrainingResult, cut, difference, restricted
from puf_common.errors import InvalidUpdate
from puf_common.receipts.gap import DoseReport
from puf_common.seeds import derive
from puf_common.tensors.manifest import Manifest
from puf_common.v1 import federation_pb2 as pb
from puf_common.v1 import tickets_pb2

T = TypeVar("T")
Part = Literal["main", "retain", "forget"]
PARTS: Mapping[int, Part] = {pb.PART_MAIN: "main", pb.PART_RETAIN: "retain", pb.PART_FORGET: "forget"}


class Flag(threading.Event):
    """An event that is also a function: `should_stop=assignment.abandoned`."""

    def __call__(self) -> bool:
        return self.is_set()


class _FromMessage(Generic[T]):
    """A read-only attribute with the value of the field of the same name in the server's message."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, work: Any, owner: type) -> T:
        value: T = getattr(work.message, self._name)
        return value


@dataclass(frozen=True, eq=False)
class Assignment:
    """One update that the server expects: train on one part of the client's data, starting at `weights`."""

    message: pb.TrainWork
    client: str
    recipe: pb.Recipe
    manifest: Manifest
    # Bytes of the base model in manifest order, read-only.
    payload: memoryview
    # The sample count that the client announced last, for assignments that name none.
    announced: int
    deliver: Callable[[pb.TrainWork, LocalUpdate], bool]
    refuse: Callable[[pb.TrainWork, str], None]
    # Set when the server no longer wants the update: stop, and continue with the next assignment.
    abandoned: Flag = field(default_factory=Flag)
    # Digest of the base model, as the server stated it.
    base_digest: bytes = b""
    # Bytes of a second model, for routines that need one.
    aux_payload: memoryview | None = None
    # Positions of the samples to use, in the data that `connect` was given; None without such data.
    indices: NDArray[np.intp] | None = None

    key = _FromMessage[pb.WorkKey]()
    """Identifies the update: membership, round, attempt and part."""
    options = _FromMessage[Mapping[str, float]]()
    """Numeric options of the routine."""
    outputs = _FromMessage[Sequence[str]]()
    """Names of the tensors to send back; empty for all."""
    base_version = _FromMessage[int]()
    lr = _FromMessage[float]()
    epochs = _FromMessage[float]()
    scale = _FromMessage[float]()
    """The factor that `submit` applies to the update; negative for a target."""
    samples = _FromMessage[int]()
    """The number of samples that the update must state; 0 if the server does not require one."""
    ticket_id = _FromMessage[str]()
    forget_request = _FromMessage[str]()
    """For the part "forget": the key of the request that names the samples."""
    plain = _FromMessage[bool]()
    """Whether to train without augmentation."""

    @property
    def unseen(self) -> tickets_pb2.ClassTable | None:
        """For the routine "dose": the other clients' hold-outs by class."""
        return self.message.unseen if self.message.HasField("unseen") else None

    @property
    def round(self) -> int:
        return self.key.round

    @property
    def attempt(self) -> int:
        return self.key.attempt

    @property
    def part(self) -> Part:
        """Which samples: "main" all current ones, "retain" the samples that a request leaves, "forget" those it names."""
        return PARTS[self.key.part]

    @property
    def routine(self) -> str:
        """What to run: "train" is ordinary descent."""
        return routine_of(self.message)

    @property
    def unlearns(self) -> bool:
        """Whether the samples of this assignment are the ones to forget."""
        return unlearns(self.message)

    @cached_property
    def weights(self) -> dict[str, NDArray[Any]]:
        """The base model by tensor name, as read-only views; bfloat16 as float32."""
        return self.manifest.values(self.payload)

    def stream(self, epoch: int) -> int:
        """Returns the seed of one epoch's random choices. It is the same for every attempt, in every process."""
        return derive(self.recipe.seed, "train", self.message.stream_round or self.round, self.client, self.part, epoch)

    def submit(
        self,
        result: TrainingResult,
        *,
        indices: Sequence[int] | NDArray[np.intp] | None = None,
        samples: int | None = None,
        train_loss: float = float("nan"),
        samples_processed: int = 0,
        dose: DoseReport | None = None,
    ) -> bool:
        """Sends the result of the training: a module, new weights by name, or the bytes of an update.

        `indices` are the positions of the samples that it was trained on: required and compared if the session knows the
        data. Scales the update if the client has to. Returns False if the server no longer wants the update. `dose` is the
        strength that the routine "dose" chose, and only that routine has one.
        """
        stated = self._stated(indices, samples)
        if self.samples and stated != self.samples:
            raise InvalidUpdate(
                f"round {self.round} requires an update of {self.samples} samples, this update is of {stated}",
                expected=self.samples,
                stated=stated,
            )
        if (dose is not None) != (self.routine == "dose"):
            raise InvalidUpdate(f"the routine {self.routine} {'needs a' if dose is None else 'has no'} chosen strength")
        layout = restricted(self.manifest, self.outputs)
        payload = cut(self.manifest, difference(self.manifest, self.payload, result), layout)
        update = LocalUpdate(payload, stated, train_loss, samples_processed, self.indices, dose, self.base_digest)
        return self.deliver(self.message, update)

    def _stated(self, indices: Sequence[int] | NDArray[np.intp] | None, samples: int | None) -> int:
        """Returns the number of samples of the update. Raises if other samples were used than the assigned ones."""
        if self.indices is None:
            used = len(indices) if indices is not None else self.announced
        elif indices is None:
            raise InvalidUpdate("state which samples were trained on: submit(..., indices=...) with those of the job")
        elif not np.array_equal(np.sort(indices), np.sort(self.indices)):
            missing, foreign = (len(np.setdiff1d(*two)) for two in ((self.indices, indices), (indices, self.indices)))
            raise InvalidUpdate(
                f"round {self.round} assigned {len(self.indices)} samples, the loop states {len(indices)}: {missing} of the "
                f"assigned are missing, {foreign} are others; train on all samples at the positions job.indices, on no "
                "others, and state each once",
                expected=len(self.indices),
                stated=len(indices),
            )
        else:
            used = len(self.indices)
        return used if samples is None else samples

    def decline(self, reason: str) -> None:
        """Declines the assignment, so that the round does not wait for its update."""
        self.refuse(self.message, reason)


@dataclass(frozen=True, eq=False)
class EvaluationRequest:
    """A model to evaluate on the client's hold-out data."""

    message: pb.EvaluateWork
    manifest: Manifest
    payload: memoryview
    answer: Callable[[pb.EvaluateWork, tickets_pb2.EvaluationSums, tickets_pb2.EvaluationSums | None], bool]

    version = _FromMessage[int]()
    training_side = _FromMessage[bool]()
    """Whether the server also wants sums over the client's training samples, without augmentation."""

    @cached_property
    def weights(self) -> dict[str, NDArray[Any]]:
        """The model by tensor name, as read-only views; bfloat16 as float32."""
        return self.manifest.values(self.payload)

    def report(
        self,
        samples: int,
        loss_sum: float,
        score_sum: float,
        *,
        confidences: Sequence[int] = (),
        classes: tickets_pb2.ClassTable | None = None,
        training: tickets_pb2.EvaluationSums | None = None,
    ) -> bool:
        """Reports sums over the hold-out samples; a score is in [0, 1]. Returns whether the server still wanted them.

        `confidences` are the counts that `puf_common.receipts.evidence.histogram` returns. `training` has the same sums
        over the training samples. Both are optional; without them a target's membership attacks cannot be calibrated.
        `classes` are the confidences by class; without them strength cannot adapt.
        """
        holdout = tickets_pb2.EvaluationSums(
            samples=samples, loss_sum=loss_sum, score_sum=score_sum, confidences=confidences, classes=classes
        )
        return self.answer(self.message, holdout, training)


def routine_of(work: pb.TrainWork) -> str:
    return work.routine or "train"


def unlearns(work: pb.TrainWork) -> bool:
    """Returns whether the update makes the model forget the samples of the assignment."""
    return work.scale < 0 or (bool(work.ticket_id) and routine_of(work) != "train")


Work = Assignment | EvaluationRequest
