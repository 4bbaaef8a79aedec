"""Where jobs execute: in this process, in several processes of this machine, or on the nodes of a Ray cluster.

Jobs are independent and write their outcome to the cache, so the executor does not change the result. A job whose
process or node dies is performed again.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from multiprocessing.queues import SimpleQueue
from typing import Any, Literal, Protocol, get_args

from puf_common.errors import UsageError
from puf_common.logging import configure
from puf_lab.experiments.cache import Cache
from puf_lab.experiments.jobs import Job, Pair
from puf_lab.experiments.measuring import score
from puf_lab.experiments.perform import perform

ExecutorKind = Literal["local", "pool", "ray"]
EXECUTORS: tuple[ExecutorKind, ...] = get_args(ExecutorKind)


@dataclass(frozen=True)
class Event:
    """Progress of a job. When `done`, `rounds` are those that the job did not need."""

    job: Job
    rounds: int
    done: bool = False
    seconds: float = 0.0


OnEvent = Callable[[Event], None]


@dataclass(frozen=True)
class ExecutorOptions:
    """Where jobs execute, as the command line states it. `jobs` is the number of processes of a pool."""

    kind: ExecutorKind = "local"
    jobs: int = 1
    ray_address: str | None = None

    @classmethod
    def of(cls, kind: ExecutorKind | None, jobs: int | None, ray_address: str | None) -> ExecutorOptions:
        """Options from flags. `--jobs` above 1 implies a pool; a pool without `--jobs` uses every core."""
        if jobs is not None and jobs < 1:
            raise UsageError("--jobs must be at least 1")
        kind = kind or ("pool" if jobs is not None and jobs > 1 else "ray" if ray_address else "local")
        if kind != "pool" and jobs is not None and jobs > 1:
            raise UsageError(f"--jobs is for --executor pool; --executor {kind} does not use it")
        if kind != "ray" and ray_address:
            raise UsageError(f"--ray-address is for --executor ray; --executor {kind} does not use it")
        return cls(kind, jobs or (os.cpu_count() or 1 if kind == "pool" else 1), ray_address)

    @property
    def processes(self) -> int:
        """Processes that use one device: those of a pool, or a task of Ray, and this one, which looks at the test data."""
        return 1 if self.kind == "local" else 1 + self.jobs


class JobExecutor(Protocol):
    @property
    def processes(self) -> int:
        """Processes that use one device."""

    @property
    def elsewhere(self) -> bool:
        """Whether jobs may run on other machines, with devices that this one does not have."""

    def perform(self, jobs: Sequence[Job], on_event: OnEvent) -> None:
        """Performs independent jobs."""

    def score(self, pairs: Sequence[Pair], names: tuple[str, ...]) -> Iterator[Job]:
        """Computes metrics. Yields each job when its metrics are in the cache."""


@contextmanager
def open_executor(options: ExecutorOptions, cache: Cache, device: str) -> Iterator[JobExecutor]:
    """The executor of these options, for jobs that compute on this device."""
    if options.kind == "ray":
        from puf_lab.experiments.ray_executor import ray_tasks

        with ray_tasks(options.ray_address, device) as run_all:
            yield TaskExecutor(cache, run_all, processes=options.processes, elsewhere=True)
    elif options.kind == "pool":
        # Not forked: a fork of a process in which torch or gRPC has run may hang.
        context = multiprocessing.get_context("spawn")
        ticks = context.SimpleQueue()
        with ProcessPoolExecutor(options.jobs, mp_context=context, initializer=_begin, initargs=(ticks,)) as pool:
            yield TaskExecutor(cache, partial(_pooled, pool), ticks, processes=options.processes)
    else:
        yield LocalExecutor(cache)


class LocalExecutor:
    """One job after the other in this process, with an event for every round."""

    processes = 1
    elsewhere = False

    def __init__(self, cache: Cache) -> None:
        self._cache = cache

    def perform(self, jobs: Sequence[Job], on_event: OnEvent) -> None:
        for job in jobs:
            left = job.rounds

            def tick(rounds: int, job: Job = job) -> None:
                nonlocal left
                left -= rounds
                on_event(Event(job, rounds))

            on_event(Event(job, 0))
            seconds = _perform(self._cache, job, tick)
            on_event(Event(job, left, done=True, seconds=seconds))

    def score(self, pairs: Sequence[Pair], names: tuple[str, ...]) -> Iterator[Job]:
        for job, targets in pairs:
            score(job, targets, self._cache, names)
            yield job


Task = tuple[Any, ...]
# Calls a function once per tuple of arguments, somewhere, and yields (index, result) as results arrive. Without a result
# it may yield (None, None) from time to time, so that progress can be shown.
RunAll = Callable[[Callable[..., Any], Iterable[Task]], Iterator[tuple[int | None, Any]]]
Ticks = SimpleQueue[tuple[str, int]]
_POLL_SECONDS = 0.2


class TaskExecutor:
    """Jobs as tasks that run elsewhere, with an event for every finished job.

    If the processes of the tasks send their rounds to the queue `ticks`, there is an event for these, too.
    """

    def __init__(
        self, cache: Cache, run_all: RunAll, ticks: Ticks | None = None, *, processes: int = 1, elsewhere: bool = False
    ) -> None:
        self.processes = processes
        self.elsewhere = elsewhere
        self._cache = cache
        self._run_all = run_all
        self._ticks = ticks

    def perform(self, jobs: Sequence[Job], on_event: OnEvent) -> None:
        left = [job.rounds for job in jobs]
        by_key = {job.key: index for index, job in enumerate(jobs)}
        for index, seconds in self._run_all(_perform, [(self._cache, job) for job in jobs]):
            while self._ticks is not None and not self._ticks.empty():
                key, rounds = self._ticks.get()
                if key in by_key:
                    left[by_key[key]] -= rounds
                    on_event(Event(jobs[by_key[key]], rounds))
            if index is not None:
                on_event(Event(jobs[index], left[index], done=True, seconds=seconds))

    def score(self, pairs: Sequence[Pair], names: tuple[str, ...]) -> Iterator[Job]:
        # One task per target: the retrained model is evaluated once for everything that is compared with it.
        groups: dict[tuple[int, tuple[int, ...]], list[Pair]] = {}
        for job, targets in pairs:
            groups.setdefault((job.seed, targets), []).append((job, targets))
        tasks = list(groups.values())
        for index, _ in self._run_all(_score, [(self._cache, group, names) for group in tasks]):
            yield from (job for job, _ in tasks[index]) if index is not None else ()


def _pooled(
    pool: ProcessPoolExecutor, function: Callable[..., Any], tasks: Iterable[Task]
) -> Iterator[tuple[int | None, Any]]:
    futures = {pool.submit(function, *task): index for index, task in enumerate(tasks)}
    left = set(futures)
    while left:
        done, left = wait(left, timeout=_POLL_SECONDS, return_when=FIRST_COMPLETED)
        yield None, None
        for future in done:
            yield futures[future], future.result()


# The queue to which a process of the pool sends its rounds.
_TICKS: list[Ticks] = []


def _begin(ticks: Ticks) -> None:
    configure(level="error")
    _TICKS.append(ticks)


def _perform(cache: Cache, job: Job, tick: Callable[[int], None] | None = None) -> float:
    """Performs a job and returns the seconds it took."""
    started = time.monotonic()

    def send(rounds: int) -> None:
        for ticks in _TICKS:
            ticks.put((job.key, rounds))

    perform(job, cache, tick or send)
    return time.monotonic() - started


def _score(cache: Cache, pairs: Sequence[Pair], names: tuple[str, ...]) -> None:
    for job, targets in pairs:
        score(job, targets, cache, names)
