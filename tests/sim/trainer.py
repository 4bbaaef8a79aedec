"""The training of a simulated client: a function of the base model and the samples, which takes simulated time."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from puf_client.routines.context import Abandoned
from puf_client.routines.per_sample import PerSample
from puf_client.routines.registry import ROUTINES
from puf_client.routines.train import TrainResult
from puf_client.session.assignment import Assignment
from puf_common.errors import NotNow
from puf_common.receipts.gap import DoseReport, Gap
from puf_common.tensors.chunks import Payload
from tests.sim.weights import MANIFEST, Update

if TYPE_CHECKING:
    from tests.sim.client import Client
    from tests.sim.process import Process


class SimTrainer:
    """Has what the client's code uses of `puf_client.worker.trainer.Trainer`."""

    manifest = MANIFEST
    base_digest = b""
    plugin_version = ""
    routines = ROUTINES
    choice = SimpleNamespace(device="cpu", why="simulated")

    def __init__(self, client: Client, process: Process) -> None:
        self._client = client
        self._process = process
        self._world = client.world
        self._trained: NDArray[np.float64] | None = None
        self.data = SimpleNamespace(ids=client.sample_ids, groups=None, holdout_samples=client.holdout)

    @property
    def model(self) -> SimTrainer:
        return self

    def state_dict(self) -> Mapping[str, Any]:
        return {"w": self._trained}

    def check_fit(self, *, labels: bool = True) -> None:
        """Simulated data fits."""

    def run(
        self,
        assignment: Assignment,
        indices: NDArray[np.intp],
        progress: Callable[[int, int], None] | None = None,
        forget: NDArray[np.bool_] | None = None,
    ) -> TrainResult:
        world = self._world
        if world.strikes("decline"):
            raise NotNow("this machine is busy")
        seconds = world.rng.uniform(2.0, 60.0) * (10.0 if world.strikes("slow_training") else 1.0)
        until = world.now + seconds
        while world.now < until:
            self._process.sleep(min(20.0, until - world.now))
            if assignment.abandoned():
                raise Abandoned
        base = world.server.store.model_of(bytes(assignment.payload))
        update = Update(
            client=self._client.name,
            membership=assignment.key.membership,
            part=assignment.part,
            round=assignment.round,
            base=base,
            ids=frozenset(int(i) for i in indices),
            epochs=assignment.epochs,
            routine=assignment.routine,
        )
        self._client.trained(update)
        self._trained = np.frombuffer(assignment.payload, "<f8") + update.difference
        dose = None
        if assignment.routine == "dose":
            dose = chosen_dose(f"{world.scenario.seed}|{self._client.name}|{base}", assignment.options)
        return TrainResult(loss=1.0, samples_processed=len(indices), dose=dose)

    def evaluate_holdout(self, payload: Payload) -> PerSample:
        return self._measured(payload, "holdout", self._client.holdout)

    def evaluate_samples(self, payload: Payload, indices: NDArray[np.intp]) -> PerSample:
        return self._measured(payload, "samples", len(indices))

    def _measured(self, payload: Payload, which: str, samples: int) -> PerSample:
        """Values that depend on the seed, the client and the model only."""
        text = f"{self._world.scenario.seed}|{self._client.name}|{which}|".encode() + bytes(payload)
        drawn = (
            np.random.default_rng(list(hashlib.sha256(text).digest()[:8])).random(samples) if samples else np.empty(0)
        )
        return PerSample(1.0 - drawn, 0.5 + drawn / 2, drawn, np.zeros(samples, np.int64))


def chosen_dose(text: str, options: Mapping[str, float]) -> DoseReport:
    """The strength that a target chooses for a model, and the gap that it states."""
    skip, share, gap = (byte / 255 for byte in hashlib.sha256(text.encode()).digest()[:3])
    least, most = options["min_kappa"], options["max_kappa"]
    if options.get("may_skip") and skip < 0.2:
        least = most = 0.0
    stated = Gap(value=gap - 0.4, error=0.05)
    return DoseReport(kappa=least + share * (most - least), gap=stated, hold=stated.value <= 0.2)
