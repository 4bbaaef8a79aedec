"""Runs one simulated history: without output, with names from its seed, and with a limit on processor time."""

from __future__ import annotations

import io
import logging
import secrets
import signal
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from random import Random
from types import FrameType

from tests.sim.checker import Violation
from tests.sim.scenario import Scenario
from tests.sim.world import Outcome, World

__all__ = ["run", "simulated"]

_SECONDS = 20.0


@contextmanager
def _watchdog(seconds: float) -> Iterator[None]:
    """Raises Violation if the core computes without end. It counts processor time, not wall-clock time."""

    def bark(_: int, frame: FrameType | None) -> None:
        where = "".join(traceback.format_stack(frame, 3)) if frame is not None else ""
        raise Violation(f"no answer within {seconds:.0f} s: {where}")

    before = signal.signal(signal.SIGVTALRM, bark)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def run(scenario: Scenario, *, verbose: bool = False) -> Outcome:
    """Runs one history to its end, to the first violation, or to an exception of the core or of the client."""
    with simulated(scenario, verbose=verbose) as world:
        return _played(world)


@contextmanager
def simulated(scenario: Scenario, *, verbose: bool = False) -> Iterator[World]:
    """A world without the log lines and the output of its programs. It is closed at the end."""
    # Simulated faults cause thousands of log lines.
    logging.disable(logging.CRITICAL)
    with _drawn(scenario.seed), redirect_stdout(io.StringIO()):
        world, before = World(scenario, verbose=verbose), time.time
        time.time = world.wall_clock
        try:
            yield world
        finally:
            time.time = before
            world.close()
            logging.disable(logging.NOTSET)


@contextmanager
def _drawn(seed: int) -> Iterator[None]:
    """Random names of tickets, sessions and files follow from the seed."""
    chance = Random(f"secrets {seed}")
    before = secrets.token_hex, secrets.token_bytes
    secrets.token_hex = lambda nbytes=None: chance.randbytes(nbytes or 32).hex()
    secrets.token_bytes = lambda nbytes=None: chance.randbytes(nbytes or 32)
    try:
        yield
    finally:
        secrets.token_hex, secrets.token_bytes = before


def _played(world: World) -> Outcome:
    try:
        with _watchdog(_SECONDS):
            world.play()
    except Violation as violation:
        return world.outcome(str(violation))
    except Exception as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(frame.filename).name}:{frame.lineno}"
        return world.outcome(f"{type(error).__name__} at {where}: {error}")
    return world.outcome("")
