"""`puf_lab.run` and `puf_lab.run_results`: an experiment from Python."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from puf_common.errors import UsageError
from puf_lab.evaluation.metrics import names_for
from puf_lab.experiments.cache import Cache
from puf_lab.experiments.executors import ExecutorOptions, open_executor
from puf_lab.experiments.runner import check_device, measured
from puf_lab.reporting.results import Results, write
from puf_lab.reporting.terminal import new_console
from puf_lab.spec.experiment import ExperimentSpec
from puf_lab.spec.settings_files import load_experiment

if TYPE_CHECKING:
    from pandas import DataFrame


def run(setting: str | Path | ExperimentSpec, **options: Any) -> DataFrame:
    """A pandas DataFrame with one row per value of a setting, after running what is missing.

    Its columns are setting, profile, method, label, targets, seed, recovered, stage, round, metric and value.
    `options` are those of `run_results`.
    """
    try:
        import pandas  # noqa: F401
    except ImportError:
        raise UsageError("puf_lab.run() needs the package pandas: pip install 'puf-fl[lab]'") from None
    return run_results(setting, **options).frame()


def run_results(
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
    """Results of a setting, after running what is missing: the values, and the facts about every run.

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
