"""`puf-server serve --workers N`: N processes on the same ports. A process that dies is started again."""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path

from puf_common.errors import UsageError
from puf_common.logging import get_logger
from puf_common.network.addresses import parse_address

# A process that dies at once is started again at this rate.
_PAUSE_SECONDS = 1.0
# Runs one process: its number, and what to do with its port numbers once it listens.
Worker = Callable[[int, Callable[[str], object]], None]


def reserved(address: str, stack: ExitStack) -> str:
    """The address with its port, which only processes of this account and this port option can share from now on."""
    host, port = parse_address(address, "cannot listen:", free_port=True)
    family, kind, _, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    try:
        # Another server that shares its ports would share them with this one.
        with socket.socket(family, kind) as alone:
            alone.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            alone.bind(place)
            place = alone.getsockname()
        held = stack.enter_context(socket.socket(family, kind))
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        held.bind(place)
    except OSError:
        raise UsageError(
            f"cannot listen on {address}: the port is in use, or the address is not this machine's"
        ) from None
    return f"{address.rpartition(':')[0]}:{place[1]}"


class Workers:
    """The processes of one command. `run` returns the exit code when all have ended."""

    def __init__(self, count: int, work: Worker, announce: Path | None) -> None:
        self._work = work
        self._announce = announce
        self._log = get_logger(__name__)
        self._running: dict[int, tuple[SpawnProcess, Connection]] = {}
        self._due: dict[int, float] = dict.fromkeys(range(1, count + 1), 0.0)
        self._ports: dict[int, str] = {}
        self._count = count
        # All processes have listened once.
        self._complete = False
        self._stopping = False
        self._code = 0

    def run(self) -> int:
        woken, wake = socket.socketpair()
        wake.setblocking(False)
        with woken, wake:
            before = signal.set_wakeup_fd(wake.fileno())
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, self._signalled)
            try:
                while self._running or (self._due and not self._stopping):
                    self._start_due()
                    self._wait(woken)
            finally:
                signal.set_wakeup_fd(before)
                for process, _ in self._running.values():
                    process.kill()
        return self._code

    def _signalled(self, *_: object) -> None:
        """The first signal lets the processes end in order, a second one ends them at once."""
        for process, _connection in self._running.values():
            process.kill() if self._stopping else process.terminate()
        self._stopping = True

    def _start_due(self) -> None:
        for number in [n for n, at in self._due.items() if at <= time.monotonic()]:
            if self._stopping:
                return
            del self._due[number]
            ours, theirs = multiprocessing.Pipe()
            process = multiprocessing.get_context("spawn").Process(
                target=_run, args=(self._work, number, theirs), name=f"worker-{number}"
            )
            process.start()
            theirs.close()
            self._running[number] = (process, ours)

    def _wait(self, woken: socket.socket) -> None:
        """Waits for ports, for the end of a process, for a signal, or until a process is to be started."""
        listening = {ours: n for n, (_, ours) in self._running.items() if n not in self._ports}
        ends = {process.sentinel: n for n, (process, _) in self._running.items()}
        left = max(0.0, min(self._due.values()) - time.monotonic()) if self._due and not self._stopping else None
        for ready in wait([*listening, *ends, woken], left):
            if ready is woken:
                woken.recv(100)
            elif isinstance(ready, Connection):
                self._listens(listening[ready], ready)
            elif isinstance(ready, int):
                self._ended(ends[ready])

    def _listens(self, number: int, connection: Connection) -> None:
        with suppress(EOFError, OSError):
            self._ports[number] = connection.recv()
        if len(self._ports) == self._count and not self._complete:
            self._complete = True
            self._log.info("all workers serve", workers=self._count)
            if self._announce is not None:
                self._announce.write_text(f"{self._ports[1]}\n")

    def _ended(self, number: int) -> None:
        process, connection = self._running.pop(number)
        connection.close()
        process.join()
        self._ports.pop(number, None)
        code = process.exitcode or 0
        if self._stopping or not code:
            # In order: a signal, or `puf-server stop`.
            return
        if not self._complete and code > 0:
            # The command is wrong, and would be so again.
            self._code = code
            self._signalled()
            return
        self._log.error("a worker has died and is started again", worker=number, code=code)
        self._due[number] = time.monotonic() + _PAUSE_SECONDS


def _run(work: Worker, number: int, connection: Connection) -> None:
    """The process of a worker. It ends in order when the process that started it is gone."""

    def follow() -> None:
        with suppress(EOFError, OSError):
            connection.recv()
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=follow, name="puf-parent", daemon=True).start()
    work(number, connection.send)
