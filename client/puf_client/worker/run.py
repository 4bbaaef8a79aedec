"""`puf-client run`: joins the federation and works until the server ends the session.

Importing torch takes seconds. Everything that can fail without torch is checked before that import.
"""

from __future__ import annotations

import signal
import sys
import threading
from typing import TYPE_CHECKING

from puf_client.data import require_available
from puf_client.machine import THIS_MACHINE, Machine
from puf_client.options import RunOptions
from puf_client.session.session import Session
from puf_client.state.directory import StateDirectory
from puf_client.state.local_models import LOCAL_MODEL, LocalModels
from puf_client.terminal import Display
from puf_client.transport.base import Transport
from puf_client.transport.dial import dial
from puf_client.worker.lease import leased
from puf_client.worker.membership import refuse_forgotten
from puf_common.config.exit_codes import Exit
from puf_common.logging import get_logger
from puf_common.v1 import federation_pb2 as pb

if TYPE_CHECKING:
    from puf_client.worker.trainer import Load
    from puf_client.worker.worker import Worker

log = get_logger("puf_client.worker.run")


def run_worker(options: RunOptions, transport: Transport | None = None) -> Exit:
    """Works until the federation ends, forgets this client, or the process gets SIGTERM."""
    require_available(options.data, options.data_dir)
    owned = transport is None
    transport = transport or dial(options, server=options.server, name=options.name, patience=options.patience)
    _exit_on_sigterm()
    try:
        return work(options, transport)
    finally:
        if owned:
            transport.close()


def work(
    options: RunOptions, transport: Transport, machine: Machine = THIS_MACHINE, load: Load[RunOptions] | None = None
) -> Exit:
    """Works until the server ends the session. `load` returns the trainer; the default prepares it from the options."""
    description = transport.describe()
    state = StateDirectory.of(description.federation_id, transport.name, options.state, machine.files)
    state.check_server_key(description.server_key)
    refuse_forgotten(transport, description, state, rejoin=options.rejoin)
    options = leased(options, transport, state, new_membership=options.rejoin)
    if load is None:
        from puf_client.worker.trainer import prepare

        load = prepare
    trainer = load(options, description)
    log.info("device", why=trainer.choice.why)
    trainer.check_fit(labels=not options.distiller)
    from puf_client.worker.worker import Worker

    with Display() as display:
        worker = Worker(trainer, state, transport, display, distiller=options.distiller, machine=machine)
        return _work(options, description, state, worker, display)


def _work(
    options: RunOptions,
    description: pb.DescribeReply,
    state: StateDirectory,
    worker: Worker,
    display: Display,
) -> Exit:
    with worker.join(description, rejoin=options.rejoin, added_samples=options.added_samples) as session:
        if LOCAL_MODEL not in session.server_stores:
            LocalModels(state).delete()
        if options.rejoin:
            state.clear_forgotten()
        log.info(
            "joined",
            federation=description.title,
            client=session.transport.name,
            membership=session.membership,
            samples=session.samples,
            holdout=worker.trainer.data.holdout_samples,
            **({"the_server_stores": list(session.server_stores)} if session.server_stores else {}),
        )
        display.say("waiting for work")
        for assigned in session:
            worker.do(assigned, session)
            display.say("waiting for work")
        return _exit_of(session, state)


def _exit_of(session: Session, state: StateDirectory) -> Exit:
    """Returns the exit code for the reason of the session's end. Records that this client was forgotten."""
    if session.leave is None or session.leave.reason == pb.LeaveOrder.REASON_STOPPED:
        return Exit.OK
    if session.leave.reason == pb.LeaveOrder.REASON_FORGOTTEN:
        state.mark_forgotten(membership=session.membership)
        log.info("this client was forgotten; do not start it again", message=session.leave.message)
        return Exit.FORGOTTEN
    log.error("the operator removed this client from the roster", message=session.leave.message)
    return Exit.REFUSED


def _exit_on_sigterm() -> None:
    """Makes SIGTERM raise SystemExit, so that the session leaves and no round waits for this client."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(int(Exit.OK)))
