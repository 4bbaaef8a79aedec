"""`puf-lab smoke`: two rounds of every method in every full-size setting on synthetic data, with memory and time.

Only the data and the rounds are smaller than in the setting. It shows within minutes whether a device can run it.
"""

from __future__ import annotations

import contextlib
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
from puf_common.errors import PufError, UsageError
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

ROUNDS = 2
# Sides of the images by dataset. MiT-B0 has an option `size`.
_SIZES = {"cifar10": 32, "cifar100": 32, "prostate": 384}
_STATUS = Path("/proc/self/status")
_CLEAR = Path("/proc/self/clear_refs")
_RUNS, _LINES, _TRACES = "cache", "lines.jsonl", "failures.txt"


@dataclass(frozen=True)
class Line:
    """One run. Settings that differ only in their real data have the same run on synthetic data: it is made once."""

    setting: str
    run: str
    key: str
    device: str
    seconds: float
    peak: int
    error: str = ""


def run_smoke(settings: Sequence[str], out: Path, *, device: str, samples: int) -> int:
    """Runs the settings, by default all full-size ones of the paper, and prints a line per run. An error is a failure."""
    configure(level="error")
    known = [name for name in full_size() if load_experiment(name).paper == name]
    for name in settings:
        if name not in known:
            raise UsageError(f"there is no full-size setting {name!r}; use some of {', '.join(known)}")
    choose(device)
    new_console().print(f"{ROUNDS} rounds on {device}, {samples} samples a client")
    return run_all([smoke_experiment(name, device=device, samples=samples) for name in settings or known], out)


def run_all(experiments: Sequence[ExperimentSpec], out: Path) -> int:
    """Runs the experiments and prints a line per run.

    An interrupted command goes on where it stopped. When all runs have succeeded, they are deleted.
    """
    console = new_console()
    total = sum(len(list(jobs_of(experiment))) for experiment in experiments)
    console.print(f"{total} runs of {len(experiments)} settings")
    found: list[Line] = []
    for experiment in experiments:
        for line in smoke(experiment, out):
            found.append(line)
            figures = line.error or f"{line.seconds:.1f} s, {size(line.peak)}"
            console.print(f"[{len(found)}/{total}] {line.setting}: {line.run}: {figures}", markup=False)
    rows = [[line.setting, line.run, f"{line.seconds:.1f}", size(line.peak), line.error or "ok"] for line in found]
    print_table(console, ["setting", "run", "seconds", "memory at most", "outcome"], rows, keys=2)
    if any(line.error for line in found):
        console.print(f"tracebacks: {out / _TRACES}\nThe same command runs what failed again.", markup=False)
        return Exit.FAILURE
    clear(out)
    return Exit.OK


def smoke_experiment(name: str, *, device: str, samples: int) -> ExperimentSpec:
    """The setting with its model, clients, recipe and methods, and with synthetic data and few rounds."""
    experiment = load_experiment(name)
    federation = experiment.federation
    options = federation.data.options
    masks = federation.task == "segmentation"
    data = DataSpec(
        name=synthetic.NAME,
        clients=federation.clients,
        options={
            "samples": samples,
            "size": options.get("size", _SIZES[federation.data.name]),
            "channels": 1 if masks else 3,
            "classes": federation.model.options.get("classes", 10),
            "masks": masks,
        },
    )
    small = {"rounds": ROUNDS, "data": data, "model": federation.model.model_copy(update={"pretrained": False})}
    defaults = {
        **experiment.defaults,
        "mode": {**experiment.defaults.get("mode", {}), "rounds": 2, "degrade_rounds": 1},
    }
    changes: dict[str, Any] = {
        "federation": federation.model_copy(update=small),
        "targets": experiment.targets[:1],
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
    free(device)
    error = ""
    started = time.monotonic()
    try:
        _run(job, cache)
    except Exception as problem:
        # A GPU without enough memory raises a RuntimeError. The other runs are tried all the same.
        error = _in_one_line(problem)
        with (cache.root.parent / _TRACES).open("a") as file:
            file.write(f"{job.experiment.name}: {job.title}\n{traceback.format_exc()}\n")
    seconds = time.monotonic() - started
    if job.needs:
        shutil.rmtree(cache.folder(job), ignore_errors=True)
    return Line(job.experiment.name, job.title, job.key, place, seconds, peak_memory(device), error)


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
        with contextlib.suppress(OSError):
            _CLEAR.write_text("5")
