"""Measures the models of a ticket on the samples to forget, and reports the figures to the server."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from puf_client.routines.measure import ModelMeasurement, measure
from puf_client.session.samples import KnownSamples
from puf_client.state.directory import StateDirectory
from puf_client.terminal import Display
from puf_client.transport.base import Transport
from puf_common.errors import NotFound, NotNow, NotYours, PufError
from puf_common.logging import get_logger
from puf_common.tracing.process import here, span
from puf_common.v1 import tickets_pb2 as tk

if TYPE_CHECKING:
    from puf_client.routines.per_sample import PerSample
    from puf_client.worker.trainer import Trainer

log = get_logger("puf_client.unlearning.measure_models")


class ModelMeasurer:
    """Measures each model of one ticket once. Without `own` data it only reads what was reported before."""

    def __init__(
        self,
        transport: Transport,
        state: StateDirectory,
        own: tuple[Trainer, KnownSamples] | None,
        display: Display,
    ) -> None:
        self.measurements: dict[int, ModelMeasurement] = {}
        self._transport = transport
        self._state = state
        self._own = own
        self._display = display
        # Models that were evaluated and not reported yet.
        self._values: dict[int, tuple[PerSample, PerSample | None]] = {}

    def measure(self, ticket: tk.Ticket) -> None:
        """Measures the models that are new on the ticket.

        The models before and after unlearning are deleted when the ticket completes. In recovery, the server may name its
        newest model after every round and wait for the figures.
        """
        for name in ("version_before", "version_unlearned", "version_recovered"):
            if ticket.HasField(name):
                self._measure(ticket, getattr(ticket, name))

    def _measure(self, ticket: tk.Ticket, version: int) -> None:
        if version in self.measurements:
            return
        known = next((m for m in ticket.measurements if m.version == version), None)
        if known is not None:
            self.measurements[version] = ModelMeasurement.from_pb(known)
            return
        if self._own is None:
            return
        try:
            values = self._values.get(version) or self._evaluate(ticket, version, *self._own)
        except (NotFound, NotYours, NotNow) as error:
            log.warning("model cannot be measured", version=version, reason=error.message)
            self.measurements[version] = ModelMeasurement(None)
            return
        self._values[version] = values
        if ticket.retained_pending and version == ticket.version_unlearned:
            # The retained clients still evaluate this model. The attacks need their sums, and the model may be gone then.
            return
        retained = next((r for r in ticket.retained if r.version == version), None)
        found = self.measurements[version] = measure(*values, retained)
        del self._values[version]
        try:
            self._transport.report_measurement(found.request(ticket.id, version))
        except PufError as error:
            log.warning("the server refused the measurement", version=version, reason=error.message)

    def _evaluate(
        self, ticket: tk.Ticket, version: int, trainer: Trainer, samples: KnownSamples
    ) -> tuple[PerSample, PerSample | None]:
        """Returns the model's values on the samples to forget and, if there is any, on the hold-out data."""
        self._display.say(f"measuring model {version}")
        with span("client.measure", here(), ticket=ticket.id) as note:
            header, payload = self._transport.fetch_model(version)
            note(**{"model.digest": header.digest.hex()})
            if ticket.request.scope == tk.SCOPE_SAMPLES:
                indices = self._state.forget_indices(trainer.data.ids, ticket.request.request_key)
            else:
                taken = [e.request_key for e in self._state.exclusions() if e.ticket_id in ticket.took_over]
                indices = np.union1d(samples.trainable(), samples.taken(taken, ticket.membership))
            if not indices.size:
                # A client that only evaluates models.
                raise NotNow("this client has no samples to forget")
            holdout = trainer.evaluate_holdout(payload) if trainer.data.holdout_samples else None
            return trainer.evaluate_samples(payload, indices), holdout
