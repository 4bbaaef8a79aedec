"""Runs as tasks of a Ray cluster: an existing one by address, or one on this machine.

The cache is how runs hand on what they made, so every node must see it under the same path (a shared file system). A task
whose node dies is given to another one; what it had finished is in the cache already.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from puf_common.errors import PufError, UsageError
from puf_lab.experiments.cache import Cache
from puf_lab.experiments.executors import Event, Pair, Tell, scored, timed
from puf_lab.experiments.jobs import Job, Place

__all__ = ["ray_pool"]

_RETRIES = 3


@contextmanager
def ray_pool(place: Place, cache: Cache, address: str | None) -> Iterator[RayPool]:
    try:
        import ray
    except ModuleNotFoundError:
        raise UsageError("the engine ray needs the package ray: pip install 'puf[lab]'") from None
    # Nothing is reported home, and a local cluster needs no dashboard.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    here: dict[str, Any] = {"address": address} if address else {"include_dashboard": False}
    try:
        ray.init(log_to_driver=False, logging_level=logging.ERROR, **here)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise PufError(f"no Ray cluster at {address or 'this machine'}: {error}") from None
    try:
        yield RayPool(ray, place, cache)
    finally:
        ray.shutdown()


class RayPool:
    """One CPU per task, and one GPU where the device is one."""

    def __init__(self, ray: Any, place: Place, cache: Cache) -> None:
        self._ray = ray
        self._place = place
        self._cache = cache
        self._options = {
            "num_cpus": 1,
            "num_gpus": 1 if place.device.startswith("cuda") else 0,
            "max_retries": _RETRIES,
            "retry_exceptions": [OSError],
        }

    def perform(self, jobs: Sequence[Job], tell: Tell) -> None:
        run = self._ray.remote(**self._options)(timed)
        submitted = {run.remote(job, self._cache, self._place): job for job in jobs}
        for reference, seconds in self._as_they_come(submitted):
            job = submitted[reference]
            tell(Event(job, job.rounds, done=True, seconds=seconds))

    def score(self, pairs: Sequence[Pair], names: tuple[str, ...]) -> Iterator[Job]:
        groups: dict[tuple[int, tuple[int, ...]], list[Pair]] = {}
        for job, targets in pairs:
            groups.setdefault((job.seed, targets), []).append((job, targets))
        run = self._ray.remote(**self._options)(scored)
        submitted = {run.remote(group, self._cache, self._place, names): group for group in groups.values()}
        for reference, _ in self._as_they_come(submitted):
            yield from (job for job, _ in submitted[reference])

    def _as_they_come(self, submitted: dict[Any, Any]) -> Iterator[tuple[Any, Any]]:
        left = list(submitted)
        while left:
            (done,), left = self._ray.wait(left, num_returns=1)
            try:
                yield done, self._ray.get(done)
            except self._ray.exceptions.RayTaskError as error:
                raise error.as_instanceof_cause() from None
