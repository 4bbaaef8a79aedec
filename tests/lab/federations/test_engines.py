"""The same seeds give the same weights in one process, in real processes and on Ray, to the bit."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from puf_lab.experiments.cache import Cache
from puf_lab.experiments.executors import pool_of
from puf_lab.experiments.jobs import Place, jobs_of
from puf_lab.experiments.perform import perform
from puf_lab.experiments.spec import Experiment

pytestmark = pytest.mark.e2e


def models(cache: Cache) -> dict[str, bytes]:
    return {str(path.relative_to(cache.root)): path.read_bytes() for path in sorted(cache.root.glob("*/*.bin"))}


@pytest.fixture
def here(tiny: Experiment, tmp_path: Path) -> tuple[Experiment, Cache]:
    """One target's runs in this process."""
    small = tiny.narrowed(targets=[(0,)], methods=["puf-regular"])
    cache = Cache(tmp_path / "here")
    for job in jobs_of(small):
        perform(job, cache, Place())
    assert len(models(cache)) >= 2 + 3
    return small, cache


def test_the_same_bits_in_real_processes(here: tuple[Experiment, Cache], tmp_path: Path) -> None:
    experiment, cache = here
    there = Cache(tmp_path / "processes")
    for job in jobs_of(experiment):
        if job.kind == "retrain":  # as good as another original, and as long in the making
            shutil.copytree(cache.folder(job), there.folder(job))
        perform(job, there, Place(engine="processes"))
    assert models(there) == models(cache)


def test_the_same_bits_on_ray(here: tuple[Experiment, Cache], tmp_path: Path) -> None:
    experiment, cache = here
    there = Cache(tmp_path / "ray")
    done: list[str] = []
    with pool_of(Place(engine="ray"), 1, there) as pool:
        for wave in (False, True):
            jobs = [job for job in jobs_of(experiment) if bool(job.needs) == wave]
            pool.perform(jobs, lambda event: done.append(event.job.kind))
        pairs = [(job, (0,)) for job in jobs_of(experiment)]
        assert len(list(pool.score(pairs, ("test", "forget")))) == len(pairs)
    assert sorted(done) == ["forget", "original", "retrain"]
    assert models(there) == models(cache)
