"""A Ray cluster of several nodes, one of which dies in the middle of a run: the models have the same bits."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, Any

import pytest

from puf_lab.experiments.cache import Cache
from puf_lab.experiments.executors import TaskExecutor
from puf_lab.experiments.jobs import Job, jobs_of
from puf_lab.experiments.perform import perform
from puf_lab.experiments.ray_executor import ray_tasks
from puf_lab.spec.experiment import ExperimentSpec

cluster_utils = pytest.importorskip("ray.cluster_utils", reason="needs the package ray: pip install 'puf-fl[lab]'")

# A dead node is noticed within a second.
_HEALTH = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 200, "health_check_failure_threshold": 3}


def held(function: Callable[..., Any], folder: Path, cache: Cache, job: Job) -> Any:
    """The first task of all waits in a pipe after its first round until its node dies. Others, and the next attempt, run."""
    import ray

    def wait(rounds: int) -> None:
        with (folder / "pipe").open("rb") as pipe:
            pipe.read()

    try:
        with (folder / "node").open("x") as file:
            file.write(ray.get_runtime_context().get_node_id())
    except FileExistsError:
        return function(cache, job)
    perform(job, cache, wait)
    raise AssertionError("the node of this task was not killed")


@pytest.mark.e2e
def test_a_killed_node_changes_no_bit(tiny: ExperimentSpec, tmp_path: Path) -> None:
    experiment = tiny.narrowed(targets=[(0,)], methods=["puf-regular"])
    jobs = [job for job in jobs_of(experiment) if not job.needs][:2]
    expected, cache = Cache(tmp_path / "expected"), Cache(tmp_path / "cache")
    for job in jobs:
        perform(job, expected)
    os.mkfifo(tmp_path / "pipe")
    head = {"num_cpus": 0, "include_dashboard": False, "_system_config": _HEALTH}
    cluster = cluster_utils.Cluster(initialize_head=True, head_node_args=head)
    nodes = [cluster.add_node(num_cpus=1) for _ in range(2)]

    writers: list[IO[bytes]] = []
    half_done: list[Path] = []

    def kill() -> None:
        writers.append((tmp_path / "pipe").open("wb"))  # opens when the task waits, which ends only with its node
        half_done.extend(cache.root.glob(".*.part"))
        name = (tmp_path / "node").read_text()
        (victim,) = (node for node in nodes if node.node_id == name)
        cluster.remove_node(victim, allow_graceful=False)

    killer = threading.Thread(target=kill, daemon=True)
    killer.start()
    try:
        with ray_tasks(cluster.address, "cpu") as run_all:

            def with_hold(function: Callable[..., Any], tasks: Iterable[tuple[Any, ...]]) -> Iterator[tuple[int, Any]]:
                return run_all(held, [(function, tmp_path, *task) for task in tasks])

            done: list[str] = []
            TaskExecutor(cache, with_hold).perform(jobs, lambda event: done.append(event.job.key))
        killer.join()
    finally:
        cluster.shutdown()
    (writer,) = writers
    writer.close()
    assert sorted(done) == sorted(job.key for job in jobs)
    assert any((draft / "federation").is_dir() for draft in half_done), "the killed task had trained a round"
    for job in jobs:
        assert cache.payload(job) == expected.payload(job)
