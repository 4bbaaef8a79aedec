"""`Worker`: executes assignments and evaluation requests on the samples that are not forgotten."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from puf_client.machine import THIS_MACHINE, Machine
from puf_client.routines.context import Abandoned
from puf_client.routines.measure import summed
from puf_client.session.assignment import Assignment, EvaluationRequest, Work
from puf_client.session.connect import connect
from puf_client.session.samples import ALL_PARTS, WITH_RETAINED_SAMPLES, KnownSamples
from puf_client.session.session import Session
from puf_client.session.settings import Joining, Offer, Running
from puf_client.state.directory import StateDirectory
from puf_client.state.local_models import LOCAL_MODEL, LocalModels
from puf_client.terminal import Display
from puf_client.transport.base import Transport
from puf_client.worker.trainer import Trainer
from puf_common.errors import PufError, Superseded
from puf_common.logging import get_logger
from puf_common.models.module_tensors import payload_of
from puf_common.tensors.manifest import MODEL
from puf_common.v1 import federation_pb2 as pb

log = get_logger("puf_client.worker.worker")

# After so many failures in a row the client stops, so that an operator looks at it.
_FAILURES_IN_A_ROW = 3


class Worker:
    """Executes assignments and evaluation requests one after the other. Excluded samples are never trained on."""

    def __init__(
        self,
        trainer: Trainer,
        state: StateDirectory,
        transport: Transport,
        display: Display,
        *,
        distiller: bool = False,
        machine: Machine = THIS_MACHINE,
    ) -> None:
        self.samples = KnownSamples(trainer.data.ids, state, transport)
        self.trainer = trainer
        self._transport = transport
        self._display = display
        self._distiller = distiller
        self._machine = machine
        self._local_models = LocalModels(state)
        self._failures = 0

    def join(
        self,
        description: pb.DescribeReply,
        *,
        rejoin: bool = False,
        only_if_no_worker: bool = False,
        added_samples: int = 0,
        heartbeats: bool = True,
        routines: Iterable[str] | None = None,
    ) -> Session:
        """Joins the federation with this client's data, model and device. `routines`: those it can run (default: all)."""
        trainer = self.trainer
        offer = Offer(
            data=self.samples,
            parts=ALL_PARTS,
            routines=trainer.routines if routines is None else routines,
            # Data without labels cannot score a model.
            holdout_samples=0 if self._distiller else trainer.data.holdout_samples,
            unlabeled_samples=len(self.samples.trainable()) if self._distiller else 0,
            manifest=trainer.manifest,
            base_digest=trainer.base_digest,
            plugin_version=trainer.plugin_version,
            device=str(trainer.choice.device),
        )
        joining = Joining(rejoin=rejoin, only_if_no_worker=only_if_no_worker, added_samples=added_samples)
        running = Running(heartbeats=heartbeats, machine=self._machine)
        return connect(self._transport, offer, joining=joining, running=running, description=description)

    def do(self, work: Work, session: Session) -> None:
        """Trains or evaluates, and sends the result. Declines what fails, so that the round does not wait for it."""
        try:
            if isinstance(work, Assignment):
                self._train(work, session)
            else:
                self._evaluate(work)
        except Abandoned:
            log.info("abandoned at the server's request", activity=session.activity)
        except Exception as error:
            self._failed(work, error)
        else:
            self._failures = 0

    def _train(self, work: Assignment, session: Session) -> None:
        indices = work.indices
        assert indices is not None
        named = self.samples.named(work.message) if work.routine in WITH_RETAINED_SAMPLES else None
        forget = np.isin(indices, named) if named is not None else None
        if work.routine == "ascent":
            # The second model of this routine is the client's local model.
            number, nbytes = int(work.options.get("last_round", 0)), work.manifest.nbytes(MODEL)
            own = self._local_models.read(work.key.membership, number, nbytes)
            work = replace(work, aux_payload=memoryview(own))
        doing = f"round {work.round}, to be forgotten" if work.unlearns else f"round {work.round}"
        self._display.say(f"training {doing}")

        def progress(done: int, total: int) -> None:
            session.activity = f"training {doing}, batch {done} of {total}"
            self._display.count(done, total)

        started = self._machine.monotonic()
        result = self.trainer.run(work, indices, progress, forget)
        if LOCAL_MODEL in session.server_stores and work.routine == "train" and not work.ticket_id:
            payload = payload_of(self.trainer.model, self.trainer.manifest)
            self._local_models.write(work.key.membership, work.round, payload)
        self._display.say(f"sending the update of {doing}")
        taken = work.submit(
            self.trainer.model,
            indices=indices,
            train_loss=result.loss,
            samples_processed=result.samples_processed,
            dose=result.dose,
        )
        log.info(
            "trained",
            round=work.round,
            part=work.part,
            samples=len(indices),
            loss=round(result.loss, 4),
            seconds=round(self._machine.monotonic() - started, 2),
            taken=taken,
            **({"scale": work.scale, "ticket": work.ticket_id} if work.ticket_id else {}),
            **({"kappa": result.dose.kappa, "gap": round(result.dose.gap.value, 4)} if result.dose else {}),
        )

    def _evaluate(self, work: EvaluationRequest) -> None:
        self._display.say(f"evaluating model {work.version}")
        sums = summed(self.trainer.evaluate_holdout(work.payload), by_class=True)
        training = None
        if work.training_side and len(mine := self.samples.trainable()):
            training = summed(self.trainer.evaluate_samples(work.payload, mine))
        work.report(
            sums.samples,
            sums.loss_sum,
            sums.score_sum,
            confidences=sums.confidences,
            classes=sums.classes,
            training=training,
        )
        log.info(
            "evaluated",
            version=work.version,
            score=round(sums.score_sum / sums.samples, 4),
            loss=round(sums.loss_sum / sums.samples, 4),
        )

    def _failed(self, work: Work, error: Exception) -> None:
        if isinstance(error, Superseded):
            raise error
        message = error.message if isinstance(error, PufError) else f"{type(error).__name__}: {error}"
        self._failures += 1
        if isinstance(work, Assignment):
            work.decline(message[:300])
        log.error("work failed", reason=message, in_a_row=self._failures)
        # A PufError may be temporary. Another exception comes from the user's code and would happen again.
        if not isinstance(error, PufError) or self._failures >= _FAILURES_IN_A_ROW:
            raise error
