"""`puf-lab quality`: how well the product forgets, over several settings, with goals relative to the noise floor."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from puf_client.data import load_data
from puf_common.config.exit_codes import Exit
from puf_common.errors import UsageError
from puf_common.files.private import write_over
from puf_common.logging import configure
from puf_lab.evaluation.metrics import names_for
from puf_lab.evaluation.statistics import Interval, bootstrap
from puf_lab.experiments.cache import Cache
from puf_lab.experiments.executors import ExecutorOptions, open_executor
from puf_lab.experiments.goals import Goal, goals_of, judged, stated_goals
from puf_lab.experiments.runner import check_device, measured
from puf_lab.reporting.quality_table import quality_sheet
from puf_lab.reporting.results import write
from puf_lab.reporting.summary import Summary, SummaryRow, summarise
from puf_lab.reporting.terminal import new_console, print_table
from puf_lab.spec.experiment import ExperimentSpec
from puf_lab.spec.settings_files import QUALITY, load_experiment, names


@dataclass(frozen=True)
class QualityOptions:
    """Which settings, by name or path, and at most so many targets and seeds of each."""

    settings: Sequence[str] = ()
    methods: Sequence[str] = ()
    targets: int | None = None
    seeds: int | None = None

    def experiments(self) -> list[ExperimentSpec]:
        known = [name for name in names() if name.startswith(QUALITY)]
        wanted = [QUALITY + name if QUALITY + name in known else name for name in self.settings] or known
        for name in wanted:
            if name not in known and not name.endswith(".toml"):
                short = ", ".join(each.removeprefix(QUALITY) for each in known)
                raise UsageError(f"there is no quality setting {name!r}; use some of {short}, or FILE.toml")
        return [self._narrowed(load_experiment(name)) for name in wanted]

    def _narrowed(self, experiment: ExperimentSpec) -> ExperimentSpec:
        for flag, number in (("--targets", self.targets), ("--seeds", self.seeds)):
            if number is not None and number < 1:
                raise UsageError(f"{flag} of `puf-lab quality` is a number of at least 1")
        return experiment.narrowed(
            targets=experiment.targets[: self.targets],
            seeds=experiment.seeds[: self.seeds],
            methods=self.methods or None,
        )


def run_quality(
    chosen: QualityOptions, out: Path, *, place: dict[str, Any], cache: Cache, options: ExecutorOptions
) -> int:
    """Runs what is missing, prints the table and writes quality.md and quality.json. Missed goals are a failure."""
    configure(level="error")
    console = new_console()
    experiments = [experiment.placed(**place) for experiment in chosen.experiments()]
    for experiment in experiments:
        stated_goals(experiment)
    console.print(f"[bold]Quality[/bold]: {len(experiments)} settings, results in {out}")
    cache.delete_orphans()
    device = experiments[0].federation.device
    check_device(options, device)
    rows: list[dict[str, Any]] = []
    skipped: list[str] = []
    missed = False
    with open_executor(options, cache, device) as executor:
        for experiment in experiments:
            reason = _unavailable(experiment)
            if reason:
                skipped.append(f"{experiment.name}: skipped, {reason}")
                console.print(skipped[-1], style="yellow", markup=False)
                continue
            results = measured(experiment, executor, cache, names_for(experiment.federation.task), console)
            write(results, out / experiment.name)
            summary, goals = summarise(results), stated_goals(experiment)
            found = goals_of(summary, goals)
            missed = missed or not all(goal.met for goal in judged(found, goals))
            rows += [_rounded(_row(summary, row, found)) for row in summary.recovering if row.method != "natural"]
            _write(out, rows, skipped)
    sheet = quality_sheet(rows, skipped, short=True)
    print_table(console, sheet.head, sheet.rows, keys=2)
    for note in sheet.notes:
        console.print(note, style="dim", markup=False)
    console.print(f"table: {out / 'quality.md'}\nrows:  {out / 'quality.json'}")
    return Exit.FAILURE if missed else Exit.OK


def _unavailable(experiment: ExperimentSpec) -> str:
    """Why the data of an experiment cannot be read; empty if they can."""
    federation = experiment.federation_for(experiment.seeds[0])
    try:
        load_data(federation.data.name, federation.context(0))
    except UsageError as error:
        return str(error)
    return ""


def _row(summary: Summary, row: SummaryRow, found: Sequence[Goal]) -> dict[str, Any]:
    """One line of the table, with what produced it."""
    experiment = summary.results.experiment
    later = max(experiment["persistence"], default=0)
    runs = summary.results.of(row.method)
    samples = summary.results.facts[0]["samples_per_client"]
    mine = [goal for goal in found if goal.method == row.method]
    assert row.recovery is not None
    return {
        "setting": experiment["name"],
        "title": experiment["title"],
        "method": row.method,
        "label": row.label,
        "targets": summary.targets,
        "seeds": summary.seeds,
        "runs": row.runs,
        "later": later,
        "gap": _numbers(summary.rows[0].interval("forget")),
        "floor": {name: _numbers(summary.floor_of(name)) for name in ("forget", "rmia", "test")},
        "forget": _numbers(row.interval("forget")),
        "forget_later": _numbers(row.interval("forget", f"after {later}")),
        "forget_equal": _numbers(row.interval("forget", "equal")),
        "rmia": _numbers(row.interval("rmia")),
        "rmia_later": _numbers(row.interval("rmia", f"after {later}")),
        "rmia_equal": _numbers(row.interval("rmia", "equal")),
        "against": _against(summary, row),
        "rmia_auc": row.values["rmia"].mean,
        "test": row.values["test"].mean,
        "deficit": row.deficit,
        "ranked": summary.is_ranked(row),
        "dip": _numbers(bootstrap(row.dips)),
        "dip_worst": min(row.dips.values()),
        "recovery_rounds": row.recovery.mean,
        "recovered": row.recovery.recovered,
        "bytes": row.nbytes,
        "epochs": row.samples / (sum(samples) / len(samples)),
        "goals": [{**asdict(goal), "met": goal.met} for goal in mine],
        **{name: sorted({getattr(run, name) for run in runs}) for name in ("code", "commit", "device", "federation")},
    }


def _against(summary: Summary, row: SummaryRow) -> dict[str, Any]:
    """Δ minus that of the first method on the same targets and seeds, and whether it is outside the noise."""
    first = summary.recovering[0]
    if row is first:
        return {}
    found = {name: summary.compare(row, first, name) for name in ("forget", "rmia")}
    return {"method": first.method} | {n: {**asdict(i), "outside_noise": clear} for n, (i, clear) in found.items()}


def _numbers(interval: Interval | None) -> dict[str, float | None] | None:
    return None if interval is None else asdict(interval)


def _rounded(value: Any) -> Any:
    """The same value with four digits after the point."""
    if isinstance(value, dict):
        return {key: _rounded(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [_rounded(entry) for entry in value]
    return round(value, 4) if isinstance(value, float) else value


def _write(out: Path, rows: list[dict[str, Any]], skipped: list[str]) -> None:
    sheet = quality_sheet(rows, skipped)
    write_over(out / "quality.md", sheet.markdown().encode(), mode=0o644)
    write_over(out / "quality.json", (json.dumps(rows, indent=1) + "\n").encode(), mode=0o644)
