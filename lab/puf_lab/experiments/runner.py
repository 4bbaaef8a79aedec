"""`puf-lab run`: an experiment's jobs, those that are not done yet, and what was measured of all of them."""

from __future__ import annotations

import os
import platform
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from puf_common.config.exit_codes import Exit
from puf_common.logging import configure
from puf_lab.evaluation.measures import names_for
from puf_lab.experiments.cache import Cache
from puf_lab.experiments.executors import Event, Pool, pool_of
from puf_lab.experiments.jobs import Job, Place, jobs_of
from puf_lab.experiments.perform import evaluator_of, score
from puf_lab.experiments.spec import Experiment
from puf_lab.reporting.results import Results, Run, write

__all__ = ["collect", "run_experiment"]


def run_experiment(
    experiment: Experiment,
    out: Path,
    *,
    place: Place,
    cache: Cache,
    jobs: int = 1,
    metrics: Sequence[str] = (),
    ray_address: str | None = None,
) -> int:
    """Runs what is missing, writes results.jsonl, shows the table."""
    configure(level="error", log_format="auto")
    console = Console(highlight=False)
    started = time.monotonic()
    out.mkdir(parents=True, exist_ok=True)
    cache.sweep()
    names = names_for(experiment.task, metrics)
    wanted = list(jobs_of(experiment))
    missing = [job for job in wanted if not cache.has(job)]
    console.print(f"[bold]{experiment.title}[/bold] ({experiment.name}, profile {experiment.profile})")
    if experiment.note:
        console.print(experiment.note)
    console.print(f"{len(wanted)} runs, {len(wanted) - len(missing)} of them done before")
    with pool_of(place, jobs, cache, ray_address) as pool:
        _perform(pool, missing, console)
        results = _scored(pool, experiment, wanted, cache, place, names, console)
    results.facts[0]["seconds"] = round(time.monotonic() - started, 1)
    results.facts[0]["seconds_of_runs"] = round(sum(run.seconds for run in results.runs), 1)
    path = write(results, out)
    _show(results, console)
    console.print(f"results: {path} ({results.facts[0]['seconds']} s)\nreport:  puf-lab report {out}")
    return Exit.OK


def _bar(console: Console) -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    return Progress(*columns, TimeRemainingColumn(), console=console, disable=not console.is_terminal)


def _perform(pool: Pool, missing: list[Job], console: Console) -> None:
    """In the order of what they need. A job takes as many rounds as it says at most; finishing early moves the bar on."""
    with _bar(console) as progress:
        bar = progress.add_task("runs", total=sum(job.rounds for job in missing))
        waves = [[j for j in missing if not j.needs], [j for j in missing if j.needs]]

        def tell(event: Event) -> None:
            progress.update(bar, advance=event.rounds, description=event.job.title)
            if event.done and not console.is_terminal:
                console.print(f"done: {event.job.title} ({event.seconds:.0f} s)")

        for wave in waves:
            pool.perform(wave, tell)


def _scored(
    pool: Pool,
    experiment: Experiment,
    wanted: list[Job],
    cache: Cache,
    place: Place,
    names: tuple[str, ...],
    console: Console,
) -> Results:
    pairs = [
        (job, targets)
        for seed in experiment.seeds
        for targets in experiment.targets
        for job in wanted
        if job.seed == seed and job.targets in ((), targets)
    ]
    with _bar(console) as progress:
        bar = progress.add_task("measuring", total=len(pairs))
        for job in pool.score(pairs, names):
            progress.update(bar, advance=1, description=f"measuring {job.title}")
    return collect(experiment, pairs, cache, place, names)


def collect(
    experiment: Experiment,
    pairs: Sequence[tuple[Job, tuple[int, ...]]],
    cache: Cache,
    place: Place,
    names: tuple[str, ...],
) -> Results:
    """What finished and measured jobs say."""
    runs = [_run(job, targets, cache, place, names) for job, targets in pairs]
    runs.sort(key=lambda run: [v.text for v in experiment.variants].index(run.method))
    facts = {
        "commit": _commit(),
        "device": place.device if place.device != "cpu" else f"cpu {platform.machine()}",
        "engine": place.engine,
        "command": shlex.join(["puf-lab", *sys.argv[1:]]),
        "cores": os.cpu_count(),
        "parameters": evaluator_of(pairs[0][0].setting(place)).parameters,
        "samples_per_client": _samples(pairs[0][0], place),
    }
    labels = {seed: list(_labels(experiment, seed, place)) for seed in experiment.seeds}
    return Results(experiment.model_dump(mode="json"), [facts], runs, {s: c for s, c in labels.items() if c})


def _run(job: Job, targets: tuple[int, ...], cache: Cache, place: Place, names: tuple[str, ...]) -> Run:
    outcome = cache.outcome(job)
    spent = outcome["spent"]
    return Run(
        method=job.variant.text,
        label=job.variant.label(job.experiment.defaults),
        targets="+".join(map(str, targets)),
        seed=job.seed,
        recovered=outcome.get("recovered"),
        stages=outcome.get("stages", {}),
        nbytes=spent["nbytes"],
        samples=spent["samples"],
        rounds=spent["rounds"],
        seconds=outcome["seconds"],
        values=score(job, targets, cache, place, names),
        curve=outcome.get("curve", []),
    )


def _samples(job: Job, place: Place) -> list[int]:
    return [data.samples for data in evaluator_of(job.setting(place)).clients]


def _labels(experiment: Experiment, seed: int, place: Place) -> Iterator[list[int]]:
    """Samples per class, client by client; nothing where a target is no class."""
    if experiment.task != "classification":
        return
    setting = next(jobs_of(experiment.narrowed(seeds=[seed]))).setting(place)
    columns = [[int(data.train_plain[i][1]) for i in range(data.samples)] for data in evaluator_of(setting).clients]
    classes = 1 + max(max(labels) for labels in columns)
    yield from (np.bincount(labels, minlength=classes).tolist() for labels in columns)


def _show(results: Results, console: Console) -> None:
    from puf_lab.reporting.summary import rich_summary, summarise

    console.print(rich_summary(summarise(results)))


def _commit() -> str:
    """Of the code that ran; marked where it was changed since."""

    def git(*words: str) -> str:
        done = subprocess.run(  # noqa: S603
            ["git", "-C", str(Path(__file__).parent), *words],  # noqa: S607
            capture_output=True,
            text=True,
            check=False,
        )
        return done.stdout.strip()

    try:
        changed: Any = git("status", "--porcelain", "--untracked-files=no")
        return git("rev-parse", "HEAD") + ("+changes" if changed else "")
    except OSError:
        return ""
