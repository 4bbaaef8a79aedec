"""`puf-lab smoke`: two rounds of every method in every full-size setting on synthetic data, with memory and time.

Only the data and the rounds are smaller than in the setting. It shows within minutes whether a device can run it.
"""

from __future__ import annotations

import resource
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from puf_client.worker.devices import choose
from puf_common.config.exit_codes import Exit
from puf_common.errors import PufError, UsageError
from puf_common.logging import configure
from puf_lab.evaluation.metrics import names_for
from puf_lab.experiments.cache import Cache
from puf_lab.experiments.jobs import jobs_of
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


@dataclass(frozen=True)
class Line:
    setting: str
    run: str
    seconds: float
    peak: int
    error: str = ""


def run_smoke(settings: Sequence[str], *, device: str, samples: int) -> int:
    """Runs the settings, by default all full-size ones of the paper, and prints a line per run. An error is a failure."""
    configure(level="error")
    console = new_console()
    known = [name for name in full_size() if load_experiment(name).paper == name]
    for name in settings:
        if name not in known:
            raise UsageError(f"there is no full-size setting {name!r}; use some of {', '.join(known)}")
    choose(device)
    found: list[Line] = []
    for name in settings or known:
        console.print(f"{name}: {ROUNDS} rounds on {device}", markup=False)
        for line in smoke(smoke_experiment(name, device=device, samples=samples)):
            found.append(line)
            console.print(f"  {line.run}: {line.seconds:.1f} s, {size(line.peak)} {line.error}", markup=False)
    rows = [[line.setting, line.run, f"{line.seconds:.1f}", size(line.peak), line.error or "ok"] for line in found]
    print_table(console, ["setting", "run", "seconds", "memory at most", "outcome"], rows, keys=2)
    return Exit.FAILURE if any(line.error for line in found) else Exit.OK


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


def smoke(experiment: ExperimentSpec) -> Iterator[Line]:
    """One line per run, with its measurement. The runs are deleted afterwards."""
    names = names_for(experiment.federation.task)
    device = choose(experiment.federation.device).device
    with tempfile.TemporaryDirectory(prefix="puf-smoke-") as folder:
        cache = Cache(Path(folder))
        failed = False
        for job in jobs_of(experiment):
            if failed and job.needs:
                break
            _reset_peak(device)
            seconds, error = 0.0, ""
            try:
                perform(job, cache)
                seconds = float(cache.outcome(job)["seconds"])
                if job.needs:
                    score(job, job.targets, cache, names)
            except PufError as problem:
                error, failed = str(problem), failed or not job.needs
            yield Line(experiment.name, job.title, seconds, peak_memory(device), error)


def peak_memory(device: torch.device) -> int:
    """The largest memory so far: of the device since the last reset, or of this process on a CPU."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    # Linux counts in kilobytes, macOS in bytes.
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _reset_peak(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
