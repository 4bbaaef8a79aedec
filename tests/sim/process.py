"""Processes of a simulated client. Each thread is a greenlet: the event heap decides which one runs, one at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from greenlet import getcurrent, greenlet

from tests.sim.client_disk import ProcessFiles

if TYPE_CHECKING:
    from tests.sim.client_disk import ClientDisk
    from tests.sim.world import World

# Waits up to this long may take longer, as on a slow machine. It keeps loops that poll every second out of the heap.
_SHORT = 2.0
_STRETCHED = 15.0


class Killed(BaseException):
    """The process ends at this point. It cannot call, write or wait any more."""


class Process:
    """One process of a client. It is the `Machine` of the client's code."""

    def __init__(self, world: World, name: str, disk: ClientDisk, wall_clock: Callable[[], float]) -> None:
        self.world = world
        self.name = name
        # The clock of its machine, which can be wrong.
        self.wall_clock = wall_clock
        self.alive = True
        self.frozen = False
        self.files = ProcessFiles(disk, self)
        self._threads: list[greenlet] = []
        # What each thread waits for. A wake-up for something else is out of date.
        self._waits: dict[greenlet, object] = {}

    # -- the machine of the client's code -------------------------------------------------------------------

    def monotonic(self) -> float:
        return self.world.now

    def event(self) -> SimEvent:
        return SimEvent(self)

    def lock(self) -> SimLock:
        return SimLock(self)

    def start(self, work: Callable[[], None], name: str) -> Thread:
        def guarded() -> None:
            try:
                work()
            except Killed:
                pass
            finally:
                self._waits.pop(thread, None)

        thread = greenlet(guarded, parent=self.world.hub)
        self._threads.append(thread)
        token = self._waits[thread] = object()
        self.world.after(0.0, self._resume, thread, token, None)
        return Thread(self, thread)

    # -- waiting -------------------------------------------------------------------------------------------

    def wait(self, begin: Callable[[Callable[[Any], None]], None]) -> Any:
        """Suspends the running thread until the function that `begin` gets is called. Returns its argument."""
        self.require_alive()
        thread, token = getcurrent(), object()
        self._waits[thread] = token
        begin(lambda value: self.world.after(0.0, self._resume, thread, token, value))
        return self.world.hub.switch()

    def sleep(self, seconds: float) -> None:
        self.wait(lambda done: self.world.after(seconds, done, None))

    def require_alive(self) -> None:
        if not self.alive:
            raise Killed

    def _resume(self, thread: greenlet, token: object, value: Any) -> None:
        if not self.alive or self._waits.get(thread) is not token:
            return
        if self.frozen:
            self.world.after(5.0, self._resume, thread, token, value)
            return
        del self._waits[thread]
        self.world.running = self
        thread.switch(value) if thread else thread.switch()
        self.world.running = None

    # -- its end -------------------------------------------------------------------------------------------

    def kill(self) -> None:
        """Ends the process. Its threads are unwound later; until then they can do nothing."""
        if self.alive:
            self.world.log(f"{self.name} killed")
        self.end()

    def end(self) -> None:
        self.alive = False
        self.world.after(0.0, self.unwind)

    def unwind(self) -> None:
        for thread in self._threads:
            # One that has not begun has nothing to unwind.
            if thread:
                thread.throw(Killed)
        self._threads.clear()

    def terminate(self) -> None:
        """SIGTERM: the main thread raises SystemExit where it waits."""
        main = self._threads[0] if self._threads else None
        if self.alive and not self.frozen and main and main in self._waits:
            del self._waits[main]
            main.throw(SystemExit)


class Thread:
    def __init__(self, process: Process, thread: greenlet) -> None:
        self._process = process
        self._thread = thread

    def join(self, timeout: float) -> None:
        if not self._thread.dead:
            self._process.sleep(timeout)


class SimEvent:
    def __init__(self, process: Process) -> None:
        self._process = process
        self._set = False
        self._waiting: list[Callable[[Any], None]] = []

    def set(self) -> None:
        self._set = True
        waiting, self._waiting = self._waiting, []
        for wake in waiting:
            wake(None)

    def clear(self) -> None:
        self._set = False

    def is_set(self) -> bool:
        return self._set

    def wait(self, timeout: float) -> bool:
        self._process.require_alive()
        if not self._set:
            world = self._process.world
            seconds = timeout if timeout > _SHORT else world.rng.uniform(timeout, _STRETCHED)

            def begin(done: Callable[[Any], None]) -> None:
                self._waiting.append(done)
                world.after(seconds, done, None)

            self._process.wait(begin)
        return self._set


class SimLock:
    def __init__(self, process: Process) -> None:
        self._process = process
        self._owner: greenlet | None = None
        self._depth = 0
        self._waiting: list[Callable[[Any], None]] = []

    def __enter__(self) -> None:
        while self._owner not in (None, getcurrent()):
            self._process.wait(self._waiting.append)
        self._owner = getcurrent()
        self._depth += 1

    def __exit__(self, *error: object) -> None:
        self._depth -= 1
        if not self._depth:
            self._owner = None
            waiting, self._waiting = self._waiting, []
            for wake in waiting:
                wake(None)
