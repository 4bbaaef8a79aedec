"""`puf_lab.run`: an experiment from Python, with its results as a table."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from puf_lab.evaluation.metrics import names_for
from puf_lab.experiments.cache import Cache
from puf_lab.experiments.executors import ExecutorOptions, open_executor
from puf_lab.experiments.runner import check_device, measured
from puf_lab.reporting.results import Results, write
from puf_lab.reporting.terminal import new_console
from puf_lab.spec.experiment import ExperimentSpec
from puf_lab.spec.settings_files import load_experiment


def run(
    setting: str | Path | ExperimentSpec,
    *,
    metrics: Sequence[str] = (),
    out: Path | str | None = None,
    cache: Path | str = "runs/cache",
    jobs: int | None = None,
    profile: str = "paper",
    place: dict[str, Any] | None = None,
    **changes: Any,
) -> Results:
    """Runs what is missing of a setting and returns its results. `results.frame()` is a table of pandas.

    `setting` is a name from `puf-lab list`, a TOML file or an `ExperimentSpec`. `changes` are fields of the experiment,
    such as `targets`, `seeds` and `methods`. `place` has device, data_dir and weights. With `out`, results.jsonl is written.
    """
    experiment = setting if isinstance(setting, ExperimentSpec) else load_experiment(str(setting), profile=profile)
    if changes:
        experiment = ExperimentSpec.checked({**dict(experiment), **changes}, experiment.name)
    experiment = experiment.placed(**(place or {}))
    options = ExecutorOptions.of(None, jobs, None)
    check_device(options, experiment.federation.device)
    names = names_for(experiment.federation.task, metrics)
    stored = Cache(Path(cache).resolve())
    with open_executor(options, stored, experiment.federation.device) as executor:
        results = measured(experiment, executor, stored, names, new_console())
    if out is not None:
        write(results, Path(out))
    return results
