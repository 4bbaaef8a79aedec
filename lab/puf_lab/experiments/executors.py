"""Who does the jobs: this process one after the other, several processes, or the nodes of a Ray cluster.

Jobs are independent of each other and leave their outcome in the cache, so it does not matter who does them, and one
that dies with its process or node is simply done again.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from puf_common.errors import UsageError
from puf_common.logging import configure
from puf_lab.experiments.cache import Cache
from puf_lab.experiments.jobs import Job, Place
from puf_lab.experiments.perform import perform, score

__all__ = ["Event", "Pool", "pool_of"]

Pair = tuple[Job, tuple[int, ...]]


@dataclass(frozen=True)
class Event:
    """So many rounds of a job were done, or (then `done`) skipped because it needed no more."""

    job: Job
    rounds: int
    done: bool = False
    seconds: float = 0.0


Tell = Callable[[Event], None]


class Pool(Protocol):
    def perform(self, jobs: Sequence[Job], tell: Tell) -> None: ...

    def score(self, pairs: Sequence[Pair], names: tuple[str, ...]) -> Iterator[Job]: ...


@contextmanager
def pool_of(place: Place, workers: int, cache: Cache, ray_address: str | None = None) -> Iterator[Pool]:
    if workers < 1:
        raise UsageError("--jobs must be at least 1")
    if place.engine == "ray":
        from puf_lab.experiments.ray_executor import ray_pool

        with ray_pool(place, cache, ray_address) as pool:
            yield pool
    elif workers == 1:
        yield Here(place, cache)
    else:
        # Not forked: a fork of a process in which torch or gRPC have run may hang.
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(workers, mp_context=context, initializer=_quiet) as executor:
            yield Several(place, cache, executor)


def _quiet() -> None:
    configure(level="error", log_format="auto")


class Here:
    """One job after the other, in this process; tells of every round."""

    def __init__(self, place: Place, cache: Cache) -> None:
        self._place = place
        self._cache = cache

    def perform(self, jobs: Sequence[Job], tell: Tell) -> None:
        for job in jobs:
            left = job.rounds

            def tick(rounds: int, job: Job = job) -> None:
                nonlocal left
                left -= rounds
                tell(Event(job, rounds))

            tell(Event(job, 0))
            seconds = timed(job, self._cache, self._place, tick)
            tell(Event(job, left, done=True, seconds=seconds))

    def score(self, pairs: Sequence[Pair], names: tuple[str, ...]) -> Iterator[Job]:
        for job, targets in pairs:
            score(job, targets, self._cache, self._place, names)
            yield job


class Several:
    """Jobs dealt out over processes; tells of a job when it is done."""

    def __init__(self, place: Place, cache: Cache, executor: ProcessPoolExecutor) -> None:
        self._place = place
        self._cache = cache
        self._executor = executor

    def perform(self, jobs: Sequence[Job], tell: Tell) -> None:
        submitted = {self._executor.submit(timed, job, self._cache, self._place): job for job in jobs}
        for future in _as_they_come(submitted):
            job = submitted[future]
            tell(Event(job, job.rounds, done=True, seconds=future.result()))

    def score(self, pairs: Sequence[Pair], names: tuple[str, ...]) -> Iterator[Job]:
        # By target: who has looked at a retrained model measures everything that is compared with it.
        groups: dict[tuple[int, tuple[int, ...]], list[Pair]] = {}
        for job, targets in pairs:
            groups.setdefault((job.seed, targets), []).append((job, targets))
        submitted = {
            self._executor.submit(scored, group, self._cache, self._place, names): group for group in groups.values()
        }
        for future in _as_they_come(submitted):
            future.result()
            yield from (job for job, _ in submitted[future])


def timed(job: Job, cache: Cache, place: Place, tick: Callable[[int], None] = lambda rounds: None) -> float:
    """Does a job; how many seconds it took."""
    started = time.monotonic()
    perform(job, cache, place, tick)
    return time.monotonic() - started


def scored(pairs: Sequence[Pair], cache: Cache, place: Place, names: tuple[str, ...]) -> None:
    for job, targets in pairs:
        score(job, targets, cache, place, names)


def _as_they_come(futures: dict[Future[Any], Any]) -> Iterator[Future[Any]]:
    left = set(futures)
    while left:
        done, left = wait(left, return_when=FIRST_COMPLETED)
        yield from done
