"""`puf-lab smoke`: two rounds of every method in every full-size setting on synthetic data, with memory and time.

Only the data and the rounds are smaller than in the setting. It shows within minutes whether a device can run it. Runs that
are the same in several settings are made once. A method that cannot serve a setting is listed with the server's reason.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import resource
import shutil
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from puf_client.worker.devices import choose
from puf_common.config.exit_codes import Exit
from puf_common.errors import NotNow, PufError, UsageError
from puf_common.logging import configure
from puf_lab.evaluation.metrics import names_for
from puf_lab.experiments.cache import Cache
from puf_lab.experiments.jobs import Job, jobs_of
from puf_lab.experiments.measuring import score
from puf_lab.experiments.perform import perform
from puf_lab.federations import synthetic
from puf_lab.reporting.paper_coverage import full_size
from puf_lab.reporting.sheet import size
from puf_lab.reporting.terminal import new_console, print_table
from puf_lab.spec.experiment import ExperimentSpec
from puf_lab.spec.federation import DataSpec
from puf_lab.spec.settings_files import load_experiment
from puf_lab.spec.variants import METHODS
from puf_server.core.methods import known, method_of
from puf_server.core.state.state import State
from puf_server.core.state.tickets import RequestForm, Scope

ROUNDS = 2
# Sides of the images by dataset. MiT-B0 has an option `size`.
_SIZES = {"cifar10": 32, "cifar100": 32, "prostate": 384}
_STATUS = Path("/proc/self/status")
_CLEAR = Path("/proc/self/clear_refs")
_RUNS, _LINES, _TRACES = "cache", "lines.jsonl", "failures.txt"


@dataclass(frozen=True)
class Line:
    """One run: what it took, why it failed, or why the server refuses its requests."""

    setting: str
    run: str
    key: str
    device: str
    seconds: float
    peak: int
    error: str = ""
    refused: str = ""

    @property
    def outcome(self) -> str:
        if self.refused:
            return f"not possible: {self.refused}"
        return f"failed: {self.error}" if self.error else f"{self.seconds:.1f} s, {size(self.peak)}"


def run_smoke(settings: Sequence[str], out: Path, *, device: str, samples: int) -> int:
    """Runs the settings, by default all full-size ones, and prints a line per run. An error is a failure."""
    configure(level="error")
    names = full_size()
    for name in settings:
        if name not in names:
            raise UsageError(f"there is no full-size setting {name!r}; use some of {', '.join(names)}")
    choose(device)
    new_console().print(f"{ROUNDS} rounds on {device}, {samples} samples a client")
    return run_all([smoke_experiment(name, device=device, samples=samples) for name in settings or names], out)


def run_all(experiments: Sequence[ExperimentSpec], out: Path) -> int:
    """Runs the experiments. Prints a line per run and a table of the experiments.

    An interrupted command goes on where it stopped. When all runs have succeeded, they are deleted.
    """
    console = new_console()
    total = len({job.key for experiment in experiments for job in jobs_of(experiment)})
    console.print(f"{len(experiments)} settings with {total} different runs")
    found: dict[str, Line] = {}
    rows = []
    for experiment in experiments:
        new, again = [], []
        for line in smoke(experiment, out):
            if line.key in found:
                again.append(found[line.key])
                continue
            found[line.key] = line
            new.append(line)
            text = f"[{len(found)}/{total}] {line.setting}: {line.run}: {line.outcome}"
            console.print(text, markup=False, soft_wrap=True)
        rows.append(_row(experiment.name, new, again))
    head = ["setting", "runs", "as above", "not possible", "failed", "seconds", "memory at most", "in"]
    print_table(console, head, rows)
    failed = [line for line in found.values() if line.error]
    if not failed:
        clear(out)
        return Exit.OK
    for line in failed:
        console.print(f"{line.setting}: {line.run}: {line.outcome}", markup=False, soft_wrap=True)
    console.print(f"tracebacks: {out / _TRACES}\nThe same command runs what failed again.", markup=False)
    return Exit.FAILURE


def _row(setting: str, new: Sequence[Line], again: Sequence[Line]) -> list[str]:
    """A setting with its numbers of runs. Its time is that of runs that no setting before it has."""
    both = [*new, *again]
    largest = max(both, key=lambda line: line.peak)
    counts = [len(both), len(again), sum(bool(line.refused) for line in both), sum(bool(line.error) for line in both)]
    return [
        setting,
        *map(str, counts),
        f"{sum(line.seconds for line in new):.0f}",
        size(largest.peak),
        largest.run.partition(" of ")[0].partition(", seed")[0],
    ]


def smoke_experiment(name: str, *, device: str, samples: int) -> ExperimentSpec:
    """The setting with its model, clients and recipe, synthetic data, few rounds, its own and all other methods."""
    experiment = load_experiment(name)
    federation = experiment.federation
    options = federation.data.options
    masks = federation.task == "segmentation"
    data = DataSpec(
        name=synthetic.NAME,
        clients=federation.clients,
        public=True,
        options={
            "samples": samples,
            "size": options.get("size", _SIZES[federation.data.name]),
            "channels": 1 if masks else 3,
            "classes": federation.model.options.get("classes", 10),
            "masks": masks,
        },
    )
    small = {
        "rounds": ROUNDS,
        "data": data,
        "model": federation.model.model_copy(update={"pretrained": False}),
        "forgetting": federation.forgetting.model_copy(update={"max_doses": ROUNDS}),
    }
    shorter = {"mode": {"rounds": ROUNDS, "degrade_rounds": 1}, "fedosd": {"rounds": ROUNDS}}
    defaults = {**experiment.defaults, **{n: experiment.defaults.get(n, {}) | o for n, o in shorter.items()}}
    own = {variant.name for variant in experiment.variants}
    changes: dict[str, Any] = {
        "federation": federation.model_copy(update=small),
        "targets": experiment.targets[:1],
        "methods": (*experiment.methods, *(name for name in METHODS if name not in own)),
        "defaults": defaults,
        "recovery_rounds": 1,
        "horizon": 1,
        "persistence": (),
    }
    return experiment.model_copy(update=changes).placed(device=device)


def smoke(experiment: ExperimentSpec, out: Path) -> Iterator[Line]:
    """One line per run, with its measurement. Finished runs and their lines are kept in `out`."""
    device = experiment.federation.device
    cache, path = Cache(out / _RUNS), out / _LINES
    cache.delete_orphans()
    before = _read(path)
    for job in jobs_of(experiment):
        line = before.get((job.key, device))
        if line is None:
            line = _line(job, cache)
            with path.open("a") as file:
                file.write(json.dumps(asdict(line)) + "\n")
        yield replace(line, setting=experiment.name, run=job.title)


def clear(out: Path) -> None:
    """Deletes the runs, their lines and tracebacks, and the directory if nothing else is in it."""
    shutil.rmtree(out / _RUNS, ignore_errors=True)
    for name in (_LINES, _TRACES):
        (out / name).unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        out.rmdir()


def _line(job: Job, cache: Cache) -> Line:
    """Performs and measures the job. Its model is deleted afterwards, unless other jobs need it."""
    place = job.experiment.federation.device
    device = choose(place).device
    refused, error = refusal(job), ""
    if refused:
        return Line(job.experiment.name, job.title, job.key, place, 0.0, 0, refused=refused)
    free(device)
    started = time.monotonic()
    try:
        _run(job, cache)
    except Exception as problem:
        # A GPU without enough memory raises a RuntimeError. The other runs are tried all the same.
        if _expected(problem, job):
            refused = str(problem)
        else:
            error = _in_one_line(problem)
            with (cache.root.parent / _TRACES).open("a") as file:
                file.write(f"{job.experiment.name}: {job.title}\n{traceback.format_exc()}\n")
    seconds = time.monotonic() - started
    if job.needs:
        shutil.rmtree(cache.folder(job), ignore_errors=True)
    return Line(job.experiment.name, job.title, job.key, place, seconds, peak_memory(device), error, refused)


def refusal(job: Job) -> str:
    """Why the server refuses such requests in any federation of this setting; empty if it may accept them."""
    if job.kind != "forget":
        return ""
    config = job.federation.server_config(forgetting=job.variant.policy())
    form = RequestForm(key="", scope=Scope.SAMPLES if job.experiment.samples else Scope.CLIENT)
    return method_of(config.forgetting).refuse("", form, State(), config) or ""


def _expected(problem: Exception, job: Job) -> bool:
    """Whether the method refused the request, and declares that it may need fewer targets or more participation."""
    if not isinstance(problem, NotNow) or "method" not in problem.facts:
        return False
    requires = known()[problem.facts["method"]].requires
    together = len(job.targets) > 1 and not requires.simultaneous
    return together or (job.federation.participation < 1 and requires.full_participation)


def _run(job: Job, cache: Cache) -> None:
    for needed in (*job.needs, *job.references) if job.needs else ():
        if not cache.has(needed):
            raise PufError(f"it needs a run that failed: {needed.title}")
    perform(job, cache)
    if job.needs:
        score(job, job.targets, cache, names_for(job.experiment.federation.task))


def _in_one_line(problem: Exception) -> str:
    first = str(problem).strip().partition("\n")[0]
    return first if isinstance(problem, PufError) else f"{type(problem).__name__}: {first}"


def _read(path: Path) -> dict[tuple[str, str], Line]:
    """Lines of successful runs. A run that failed is tried again."""
    texts = path.read_text().splitlines() if path.exists() else []
    lines = [Line(**json.loads(text)) for text in texts]
    return {(line.key, line.device): line for line in lines if not line.error}


def peak_memory(device: torch.device) -> int:
    """The largest memory since the last reset, of the device, or of this process on a CPU.

    Only Linux can reset the figure of a process; elsewhere it is the largest since the start.
    """
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    if _STATUS.exists():
        line = next(text for text in _STATUS.read_text().splitlines() if text.startswith("VmHWM:"))
        return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def free(device: torch.device) -> None:
    """Returns memory that finished runs left to the device, and resets the figure of the largest memory."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
    elif _STATUS.exists():
        # The allocator of glibc keeps freed memory. It would count for the next run, too.
        with contextlib.suppress(AttributeError):
            ctypes.CDLL(None).malloc_trim(0)
        with contextlib.suppress(OSError):
            _CLEAR.write_text("5")
