"""`puf-client fleet`: many clients on one machine, each in a process that is forked after torch was imported.

Importing torch takes seconds and memory; the child processes share both. A process that uses gRPC must not fork, so the
parent process makes no calls.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import FrameType

from puf_client.options import FleetOptions, RunOptions
from puf_common.config.exit_codes import Exit
from puf_common.errors import UsageError
from puf_common.logging import get_logger

log = get_logger("puf_client.cli.fleet")

_PR_SET_PDEATHSIG = 1


def members(options: FleetOptions) -> list[RunOptions]:
    """Returns client-0 with shard 0/N to client-(N-1) with shard N-1/N, without the excepted shards."""
    unknown = [i for i in options.leave_out if not 0 <= i < options.clients]
    if unknown:
        raise UsageError(f"--except {unknown[0]}: shards go from 0 to {options.clients - 1}")
    shared = {key: value for key, value in options if key in RunOptions.model_fields}
    chosen = [i for i in range(options.clients) if i not in options.leave_out]
    if not chosen:
        raise UsageError("--except leaves no client")
    prefix = options.name or "client"
    return [RunOptions(**shared | {"name": f"{prefix}-{i}", "shard": f"{i}/{options.clients}"}) for i in chosen]


def run_fleet(options: FleetOptions, run: Callable[[RunOptions], int]) -> int:
    """Starts every member with `run`, forwards signals, and waits for all members."""
    fleet = members(options)
    if options.log_dir is not None:
        options.log_dir.mkdir(parents=True, exist_ok=True)
    # Imports torch: modules that are imported before the fork are shared.
    import puf_client.worker.run
    import puf_client.worker.worker  # noqa: F401

    running: dict[int, str] = {}
    received: list[int] = []

    def forward(number: int, frame: FrameType | None) -> None:
        received.append(number)
        for process in running:
            os.kill(process, signal.SIGTERM)

    # Signals between two forks are delayed until the handler knows all child processes.
    signals = {signal.SIGINT, signal.SIGTERM}
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    for number in signals:
        signal.signal(number, forward)
    sys.stdout.flush()
    sys.stderr.flush()
    for member in fleet:
        process = os.fork()
        if process == 0:
            _become(member, options.log_dir, run)
        running[process] = member.name
    signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)
    log.info("clients started", clients=len(fleet))

    worst = Exit.OK.value
    while running:
        process, status = os.wait()
        name = running.pop(process, None)
        if name is None:
            continue
        code = os.waitstatus_to_exitcode(status)
        if code in (Exit.OK, Exit.FORGOTTEN):
            log.info("client ended", client=name, code=code)
        else:
            log.error("client failed", client=name, code=code)
            worst = worst or (code if code > 0 else Exit.FAILURE.value)
    return Exit.INTERRUPTED if signal.SIGINT in received else worst


def _become(member: RunOptions, log_dir: Path | None, run: Callable[[RunOptions], int]) -> None:
    """Runs a member in a child process, then exits without the parent's signal handlers and clean-up."""
    code = Exit.FAILURE.value
    try:
        # SIGINT from the keyboard reaches the whole group. The parent sends one SIGTERM to each child instead.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGTERM})
        if sys.platform == "linux":
            # The kernel sends SIGTERM when the parent dies. Elsewhere children run until the server ends.
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if log_dir is not None:
            descriptor = os.open(log_dir / f"{member.name}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            os.dup2(descriptor, 1)
            os.dup2(descriptor, 2)
        code = run(member)
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else Exit.FAILURE.value
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
