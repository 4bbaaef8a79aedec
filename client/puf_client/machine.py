"""What a client process uses of its machine beside the network: time, threads and files.

A simulator replaces it. Its threads then run one at a time, its time passes at once, and its disk can fail.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol

from puf_common.files.durable import DISK, Writes


class Event(Protocol):
    def set(self) -> None: ...
    def clear(self) -> None: ...
    def is_set(self) -> bool: ...

    def wait(self, timeout: float) -> bool:
        """Waits until the event is set, at most `timeout` seconds. Returns whether it is set."""


class Task(Protocol):
    def join(self, timeout: float) -> None:
        """Waits until the task ends, at most `timeout` seconds."""


class Machine(Protocol):
    @property
    def files(self) -> Writes: ...
    def monotonic(self) -> float: ...
    def event(self) -> Event: ...

    def lock(self) -> AbstractContextManager[object]:
        """A lock that its owner may take again."""

    def start(self, work: Callable[[], None], name: str) -> Task:
        """Runs `work` beside the caller. It ends with the process at the latest."""


class ThisMachine:
    """The machine that this process runs on."""

    files: Writes = DISK

    def monotonic(self) -> float:
        return time.monotonic()

    def event(self) -> Event:
        return threading.Event()

    def lock(self) -> AbstractContextManager[object]:
        return threading.RLock()

    def start(self, work: Callable[[], None], name: str) -> Task:
        thread = threading.Thread(target=work, name=name, daemon=True)
        thread.start()
        return thread


THIS_MACHINE = ThisMachine()
