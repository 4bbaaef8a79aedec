"""`puf-lab tune`: every method with every value of its grid, on runs that are not reported afterwards.

The best configuration of a method is the one whose models at completion are closest to Retrain. Configurations whose test
accuracy is then below Retrain's by more than noise are chosen only if there are no others. The first crossing of Retrain's
test accuracy does not decide, because it is noisy in the two or three runs of a sweep. How many of the chosen runs crossed it
is a remark. The results are two files: all rows, and a setting file with the values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from puf_common.config.exit_codes import Exit
from puf_common.errors import UsageError
from puf_common.files.private import write_over
from puf_common.logging import configure
from puf_lab.evaluation.metrics import names_for
from puf_lab.experiments.cache import Cache
from puf_lab.experiments.executors import ExecutorOptions, open_executor
from puf_lab.experiments.runner import check_device, measured
from puf_lab.reporting.results import write
from puf_lab.reporting.summary import Summary, SummaryRow, summarise
from puf_lab.reporting.terminal import new_console, print_table
from puf_lab.spec.experiment import ExperimentSpec
from puf_lab.spec.tuning import Remarks, TunedOn, remarks_of, toml_of
from puf_lab.spec.variants import Variant

FILE = "tuned.toml"
# Metrics whose distances to Retrain are added. A task without classes has no RMIA.
_CRITERIA = (("forget", "rmia"), ("forget", "loss"))


@dataclass(frozen=True)
class Choice:
    """A method's configurations, best first."""

    method: str
    rows: list[SummaryRow]
    summary: Summary

    @property
    def best(self) -> dict[str, str]:
        """The options of the best configuration."""
        return _options(self.rows[0])

    @property
    def remarks(self) -> Remarks:
        """What recovered, and which chosen values are at the edge of those tried."""
        recovered = any(self.summary.is_ranked(row) and row.recovery and row.recovery.recovered for row in self.rows)
        first = self.rows[0].recovery
        chosen = None if first is None or first.recovered == first.targets else (first.recovered, first.targets)
        edges = remarks_of(self.method, self.best, [_options(row) for row in self.rows])
        return edges.model_copy(update={"recovered": recovered, "chosen_recovered": chosen})


def run_tuning(
    experiment: ExperimentSpec, out: Path, *, methods: Sequence[str], cache: Cache, options: ExecutorOptions
) -> int:
    """Runs the sweep, prints its table and writes the rows and the chosen values."""
    configure(level="error")
    console = new_console()
    sweep = sweep_of(experiment, methods)
    check_device(options, sweep.federation.device)
    cache.delete_orphans()
    with open_executor(options, cache, sweep.federation.device) as executor:
        results = measured(sweep, executor, cache, names_for(sweep.federation.task), console)
    summary = summarise(results)
    choices = choices_of(summary)
    rows = write(results, out)
    remarks = {choice.method: choice.remarks for choice in choices}
    tuned_on = TunedOn(seeds=sweep.seeds, targets=sweep.targets, data_seed=sweep.data_seed, remarks=remarks)
    comment = f"Chosen by `puf-lab tune {experiment.name}` on runs that are not reported. The rows are in {rows.name}."
    path = out / FILE
    write_over(path, toml_of({c.method: c.best for c in choices}, tuned_on, comment).encode(), mode=0o644)
    table = [[row.label, _points(row), str(row.recovery)] for choice in choices for row in choice.rows]
    first = {choice.rows[0].label for choice in choices}
    marked = [[f"**{cell}**" if row[0] in first else cell for cell in row] for row in table]
    print_table(console, ["configuration", "Δ to Retrain", "recovery rounds"], marked)
    console.print(f'rows:   {rows}\nvalues: {path}; a setting uses them with base = [..., "{path}"]', markup=False)
    return Exit.OK


def sweep_of(experiment: ExperimentSpec, methods: Sequence[str]) -> ExperimentSpec:
    """The experiment of the sweep: other seeds, and the configurations of these methods, by default of all in the grid."""
    tuning = experiment.tuning
    if tuning is None:
        raise UsageError(f"setting {experiment.name} has no table [tuning] with seeds and a grid of values")
    used = {Variant.parse(text, experiment.defaults).name for text in experiment.methods}
    wanted = methods or [name for name in tuning.grid if name in used]
    texts = [text for method in wanted for text in tuning.configurations(method)]
    if not texts:
        raise UsageError(f"no method of {experiment.name} is in its grid")
    targets = tuning.targets or experiment.targets
    seed = experiment.data_seed
    both = TunedOn(seeds=tuning.seeds, targets=targets, data_seed=seed).overlap(
        experiment.seeds, experiment.targets, seed
    )
    if both:
        raise UsageError(f"{both[0]} is reported; choose others under [tuning]")
    changed = {"methods": texts, "seeds": tuning.seeds, "targets": targets, "tuned_on": None}
    # The choice looks at completion only: no run goes on after it.
    shorter = {"horizon": 1, "persistence": ()}
    return ExperimentSpec.checked({**dict(experiment), **changed, **shorter}, experiment.name)


def choices_of(summary: Summary) -> list[Choice]:
    """The configurations of every method, best first."""
    families: dict[str, list[SummaryRow]] = {}
    for row in summary.recovering:
        families.setdefault(row.method.split()[0], []).append(row)
    return [
        Choice(name, sorted(rows, key=lambda row: (not summary.is_ranked(row), distance(row))), summary)
        for name, rows in families.items()
    ]


def distance(row: SummaryRow) -> float:
    """The sum of the mean distances to Retrain that decides."""
    criteria = next(names for names in _CRITERIA if all(name in row.deltas for name in names))
    return sum(row.deltas[name].mean for name in criteria)


def _options(row: SummaryRow) -> dict[str, str]:
    return dict(word.split("=", 1) for word in row.method.split()[1:])


def _points(row: SummaryRow) -> str:
    return f"{distance(row):.1f}"
