"""Every kind of federation on every executor gives the same bits. The device reaches every process."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from puf_common.errors import PufError, UsageError
from puf_lab.experiments.cache import Cache
from puf_lab.experiments.executors import EXECUTORS, ExecutorKind, ExecutorOptions, TaskExecutor, open_executor
from puf_lab.experiments.jobs import Job, jobs_of
from puf_lab.experiments.perform import perform
from puf_lab.experiments.ray_executor import gpus_of_a_task
from puf_lab.experiments.runner import measured, run_experiment
from puf_lab.reporting.terminal import new_console
from puf_lab.spec.experiment import ExperimentSpec
from puf_lab.spec.federation import DATA_BYTES, KINDS, FederationKind, FederationSpec


def models(cache: Cache) -> dict[str, bytes]:
    return {str(path.relative_to(cache.root)): path.read_bytes() for path in sorted(cache.root.glob("*/*.bin"))}


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Cache:
    return Cache(tmp_path_factory.mktemp("reference"))


@pytest.fixture
def small(tiny: ExperimentSpec, reference: Cache) -> ExperimentSpec:
    """Runs of one target, performed once in this process."""
    small = tiny.narrowed(targets=[(0,)], methods=["puf-regular"])
    for job in jobs_of(small):
        perform(job, reference)
    assert len(models(reference)) >= 2 + 3
    return small


@pytest.mark.e2e
@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("kind", KINDS)
def test_every_combination_gives_the_same_bits(
    kind: FederationKind, executor: ExecutorKind, small: ExperimentSpec, reference: Cache, tmp_path: Path
) -> None:
    cache = Cache(tmp_path / "cache")
    jobs = list(jobs_of(small.placed(kind=kind)))
    if kind == "processes":  # a retrained federation is trained like an original, so one of them is enough
        for job in jobs:
            if job.kind == "retrain":
                shutil.copytree(reference.folder(job), cache.folder(job))
    done: list[str] = []
    with open_executor(ExecutorOptions.of(executor, None, None), cache, "cpu") as running:
        for needs in (False, True):
            wave = [job for job in jobs if bool(job.needs) == needs]
            running.perform(wave, lambda event: done.append(event.job.kind) if event.done else None)
        pairs = [(job, (0,)) for job in jobs if job.repeat < 2]
        assert len(list(running.score(pairs, ("test", "forget")))) == len(pairs)
    assert sorted(done) == ["forget", "original", "retrain", "retrain", "retrain"]
    assert models(cache) == models(reference)
    assert {cache.outcome(job)["federation"] for job in jobs if job.kind != "retrain"} == {kind}


@pytest.mark.e2e
def test_client_processes_use_the_device_of_the_experiment(tiny: ExperimentSpec, tmp_path: Path) -> None:
    """A client process that is given a missing device fails; it does not train on the CPU."""
    original = next(jobs_of(tiny.placed(kind="processes", device="cuda:99")))
    with pytest.raises(PufError, match="fleet ended with code"):
        perform(original, Cache(tmp_path / "cache"))
    assert not list((tmp_path / "cache").iterdir()), "a failed job leaves no folder"


@pytest.mark.skipif(torch.cuda.is_available(), reason="refuses devices that this machine does not have")
@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_missing_device_is_refused_before_anything_runs(
    kind: FederationKind, executor: ExecutorKind, tiny: ExperimentSpec, tmp_path: Path
) -> None:
    options = ExecutorOptions.of(executor, None, None)
    placed = tiny.placed(kind=kind, device="cuda:3")
    with pytest.raises(
        UsageError, match="--executor ray use --device cuda" if executor == "ray" else "cuda:3 was requested"
    ):
        run_experiment(placed, tmp_path / "out", cache=Cache(tmp_path / "cache"), options=options)
    assert not (tmp_path / "out").exists()
    assert not (tmp_path / "cache").exists()


def test_a_task_of_a_cluster_reserves_the_gpu_that_it_uses() -> None:
    assert [gpus_of_a_task(device, 4) for device in ("cpu", "auto", "cuda")] == [0, 1, 1]
    assert [gpus_of_a_task(device, 0) for device in ("cpu", "auto")] == [0, 0]
    with pytest.raises(UsageError, match="no node of the Ray cluster has one"):
        gpus_of_a_task("cuda", 0)


def test_the_machine_that_starts_a_cluster_needs_no_gpu(tiny: ExperimentSpec, tmp_path: Path) -> None:
    """Its data and labels are looked at on the CPU. The jobs get the device that was asked for."""

    class ReachedTheCluster(Exception):
        pass

    def run_all(function: Callable[..., Any], tasks: Iterable[tuple[Any, ...]]) -> Iterator[tuple[int, Any]]:
        assert {job.federation.device for _, job in tasks} == {"cuda"}
        raise ReachedTheCluster

    cache = Cache(tmp_path / "cache")
    placed = tiny.narrowed(targets=[(0,)], methods=["natural"]).placed(device="cuda")
    with pytest.raises(ReachedTheCluster):
        measured(placed, TaskExecutor(cache, run_all, elsewhere=True), cache, ("test",), new_console())
    if not torch.cuda.is_available():
        with pytest.raises(UsageError, match="no GPU"):
            measured(placed, TaskExecutor(cache, run_all), cache, ("test",), new_console())


def test_a_place_of_another_name_is_refused(tiny: ExperimentSpec) -> None:
    for fields in ({"devise": "cuda"}, {"kind": "ray"}):
        with pytest.raises(UsageError, match=r"devise|kind"):
            tiny.placed(**fields)
    assert tiny.placed(data_dir="data").federation.data_dir == Path("data")


CALM = """
from dataclasses import replace

from puf_client.routines.train import train
from puf_server.core.methods.base import Method, Requirements, Step
from puf_server.core.methods.blocks import weighted_mean
from puf_server.core.state.rounds import Combine, CombineRule


def calmly(given, context):
    return train(given.model, given.samples, given.task, replace(given.settings, lr=given.options["lr"]), context)


class Calm(Method):
    name, summary = "calm", "the model of the target after a slow epoch"
    requires = Requirements(target_takes_part=True)
    routines = ("calm:calmly",)

    def step(self, view):
        asked = tuple(
            t.assignment(samples=t.forget_samples, epochs=1.0, routine="calm:calmly", options={"lr": 0.05})
            for t in view.targets
        )
        return Step(base=view.state.version, assignments=asked, combine=Combine(rule=CombineRule.INSTALL), last=True)

    def rule(self, combine, manifest, updates):
        return weighted_mean
"""


@pytest.mark.e2e
def test_client_processes_run_the_routine_of_a_users_method(
    tiny: ExperimentSpec, reference: Cache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "calm.py").write_text(CALM)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.syspath_prepend(str(tmp_path))
    found = []
    for kind in KINDS:
        cache = Cache(tmp_path / kind)
        *before, job = jobs_of(tiny.narrowed(targets=[(0,)], methods=["calm:Calm"]).placed(kind=kind))
        for needed in before:
            if needed.repeat == 0:
                perform(replace(needed, experiment=needed.experiment.placed(kind="in-process")), cache)
        perform(job, cache)
        found.append((cache.outcome(job)["curve"], cache.outcome(job)["federation"]))
    assert [curve for curve, _ in found] == [found[0][0]] * len(KINDS)
    assert {kind for _, kind in found} == set(KINDS)


def test_executors_from_flags() -> None:
    assert ExecutorOptions.of(None, None, None) == ExecutorOptions("local", 1)
    assert ExecutorOptions.of(None, 1, None) == ExecutorOptions("local", 1)
    assert ExecutorOptions.of(None, 3, None) == ExecutorOptions("pool", 3)
    assert ExecutorOptions.of("pool", None, None).jobs >= 1
    assert ExecutorOptions.of(None, None, "host:6379") == ExecutorOptions("ray", 1, "host:6379")
    for kind, jobs, address in (("local", 2, None), ("ray", 2, None), (None, 0, None), ("pool", 2, "host:6379")):
        with pytest.raises(UsageError):
            ExecutorOptions.of(kind, jobs, address)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "processes"),
    [
        (ExecutorOptions.of(None, None, None), 1),
        (ExecutorOptions.of("pool", 1, None), 2),
        (ExecutorOptions.of(None, 4, None), 5),
        (ExecutorOptions.of("ray", None, None), 2),
    ],
)
def test_processes_that_share_a_device_share_the_bound_on_data(options: ExecutorOptions, processes: int) -> None:
    """The process that the user starts is one of them: it looks at the test data first."""
    assert options.processes == processes
    shared = FederationSpec(device="cuda", sharing=options.processes)
    assert DATA_BYTES - processes < processes * shared.data_bytes <= DATA_BYTES
    assert FederationSpec(sharing=options.processes).data_bytes == DATA_BYTES, "a CPU's memory is not divided"


def test_every_task_knows_with_how_many_it_shares_the_device(tiny: ExperimentSpec, tmp_path: Path) -> None:
    cache = Cache(tmp_path / "cache")
    shares: list[int] = []

    def run_all(function: Callable[..., Any], tasks: Iterable[tuple[Any, ...]]) -> Iterator[tuple[int, Any]]:
        for index, task in enumerate(tasks):
            jobs = [task[1]] if isinstance(task[1], Job) else [job for job, _ in task[1]]
            shares.extend(job.federation.sharing for job in jobs)
            yield index, function(*task)

    experiment = tiny.narrowed(targets=[(0,)], methods=["natural"])
    measured(experiment, TaskExecutor(cache, run_all, processes=5), cache, ("test", "forget"), new_console())
    assert set(shares) == {5}
