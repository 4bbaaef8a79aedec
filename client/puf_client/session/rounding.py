"""Rounding of 8-bit updates with error feedback: what one update loses by rounding, the client's next update adds.

Only ordinary training carries the error. An update that serves a request neither adds nor leaves one: what a target sends
in order to be forgotten depends on its data alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from puf_client.state.directory import StateDirectory
from puf_client.state.rounding_errors import RoundingErrors
from puf_common.seeds import derive
from puf_common.tensors.chunks import Payload
from puf_common.tensors.manifest import UPDATE, Manifest
from puf_common.v1 import federation_pb2 as pb


@dataclass(frozen=True)
class Rounding:
    """How one update is rounded. Without `errors` it carries no error of an earlier update and leaves none."""

    seed: int = 0
    membership: int = 0
    round: int = 0
    errors: RoundingErrors | None = None

    @classmethod
    def of(cls, work: pb.TrainWork, client: str, recipe_seed: int, state: StateDirectory | None) -> Rounding:
        """The rounding of an assignment. Every attempt at it has the same seed and the same error to correct."""
        key = work.key
        seed = derive(recipe_seed, "rounding", key.round, client, key.part)
        if state is None:
            return cls(seed)
        if work.ticket_id:
            # An update that was under way when the request was filed may have left one.
            RoundingErrors(state).delete()
        if not carries_error(work):
            return cls(seed)
        return cls(seed, key.membership, key.round, RoundingErrors(state))

    def corrected(self, manifest: Manifest, payload: Payload) -> Payload:
        """The update and the error of the client's last update."""
        error = self.errors and self.errors.read(self.membership, self.round, manifest.nbytes(UPDATE))
        if not error:
            return payload
        whole = bytearray(payload)
        last = manifest.views(error, UPDATE)
        for spec, values in zip(manifest.tensors, manifest.views(whole, UPDATE).values(), strict=True):
            if spec.role == "parameter":
                np.add(values, last[spec.name], out=values)
        return whole

    def keep_error(self, manifest: Manifest, wanted: Payload, sent: Payload) -> None:
        """Stores what rounding has changed, durably, before the update is sent."""
        if self.errors is None:
            return
        error = bytearray(wanted)
        rounded = manifest.views(sent, UPDATE)
        for spec, values in zip(manifest.tensors, manifest.views(error, UPDATE).values(), strict=True):
            if spec.role == "parameter":
                np.subtract(values, rounded[spec.name], out=values)
        self.errors.write(self.membership, self.round, error)


def carries_error(work: pb.TrainWork) -> bool:
    """Whether an update is one of ordinary training, of the whole model and all samples."""
    ordinary = not work.ticket_id and work.routine in ("", "train") and work.key.part == pb.PART_MAIN
    return ordinary and work.scale == 1.0 and not work.outputs
