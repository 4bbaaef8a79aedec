"""PUF's own service on the data of `task`: a server on loopback and clients that train in numpy."""

from __future__ import annotations

import threading
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from tests.integrations import task
from tests.running import make_state, running, tiny_config

from puf_client.session.assignment import Assignment
from puf_client.session.connect import connect
from puf_client.session.session import Session
from puf_client.session.settings import Offer
from puf_common.errors import PufError
from puf_common.tensors.manifest import MODEL, Manifest, TensorSpec
from puf_common.v1 import federation_pb2 as pb
from puf_common.v1 import tickets_pb2 as tk

MANIFEST = Manifest(
    tuple(
        TensorSpec(name, "f32", array.shape, "buffer" if "running" in name else "parameter")
        for name, array in task.initial().items()
    )
)


def service_model(directory: Path, clients: int, target: int, *, rounds: int, recovery: int, mode: str) -> task.Arrays:
    """The model after training, one unlearning round with kappa 2 and some recovery rounds."""
    payload = bytearray(MANIFEST.nbytes(MODEL))
    for name, view in MANIFEST.views(payload, MODEL).items():
        view[...] = task.initial()[name]
    config = tiny_config(
        plan={"rounds": rounds, "min_clients": 1, "start_clients": clients},
        forgetting={"blind_recovery_rounds": recovery, "max_recovery_rounds": recovery},
    )
    make_state(directory, config, MANIFEST, payload)
    with running(directory) as server, ExitStack() as stack:
        sessions = [
            stack.enter_context(
                connect(
                    f"127.0.0.1:{server.port}",
                    Offer(samples=len(task.samples(i)[1]), manifest=MANIFEST),
                    name=f"client-{i}",
                )
            )
            for i in range(clients)
        ]
        threads = [threading.Thread(target=_work, args=(s, i), daemon=True) for i, s in enumerate(sessions)]
        for thread in threads:
            thread.start()
        leaver = sessions[target].transport
        _wait(lambda: leaver.describe().position.round == rounds)
        strength = tk.Strength(kappa=2.0)
        wanted = tk.UnlearningRequest(
            request_key="r",
            scope=tk.SCOPE_CLIENT,
            mode=f"MODE_{mode.upper()}",
            strength=strength,
        )
        ticket = leaver.file_unlearning(pb.FileUnlearningRequest(request=wanted)).ticket
        for reply in leaver.follow_ticket(ticket.id):
            if reply.ticket.state == tk.TICKET_STATE_COMPLETED:
                break
        _, model = leaver.fetch_model(rounds + 1 + recovery)
        for session in sessions:
            session.close()
        for thread in threads:
            thread.join(20)
        return {name: view.copy() for name, view in MANIFEST.views(model, MODEL).items()}


def _work(session: Session, partition: int) -> None:
    """Does all work of one client, until its session is closed."""
    with suppress(PufError):
        for work in session:
            assert isinstance(work, Assignment)
            weights: dict[str, Any] = dict(work.weights)
            work.submit(task.train(weights, partition)[0])


def _wait(condition: Any) -> None:
    pause = threading.Event()
    for _ in range(1200):
        if condition():
            return
        pause.wait(0.05)
    raise AssertionError("never came true")
