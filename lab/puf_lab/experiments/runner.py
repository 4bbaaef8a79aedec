"""`puf-lab run`: performs the missing jobs of an experiment and collects the metrics of all jobs."""

from __future__ import annotations

import os
import platform
import shlex
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from puf_client.worker.devices import choose
from puf_common.config.exit_codes import Exit
from puf_common.errors import UsageError
from puf_common.logging import configure
from puf_lab.evaluation.metrics import names_for
from puf_lab.experiments.cache import Cache
from puf_lab.experiments.executors import Event, ExecutorOptions, JobExecutor, open_executor
from puf_lab.experiments.goals import goals_of, judged, stated_goals
from puf_lab.experiments.jobs import Job, Pair, jobs_of, pairs_of
from puf_lab.experiments.measuring import evaluator_of, score
from puf_lab.reporting.provenance import commit
from puf_lab.reporting.results import Results, Run, write
from puf_lab.reporting.summary import summarise
from puf_lab.reporting.terminal import new_console, print_summary
from puf_lab.spec.experiment import ExperimentSpec
from puf_lab.spec.readings import readings

# Without a terminal, rounds are reported this often.
SECONDS_BETWEEN_LINES = 60.0


def run_experiment(
    experiment: ExperimentSpec,
    out: Path,
    *,
    cache: Cache,
    options: ExecutorOptions,
    metrics: Sequence[str] = (),
    goals: bool = False,
) -> int:
    """Performs the missing jobs, writes results.jsonl and prints the table. With `goals`, missed goals are a failure."""
    configure(level="error")
    stated = stated_goals(experiment) if goals else None
    console = new_console()
    started = time.monotonic()
    names = names_for(experiment.federation.task, metrics)
    device = experiment.federation.device
    check_device(options, device)
    cache.delete_orphans()
    with open_executor(options, cache, device) as executor:
        results = measured(experiment, executor, cache, names, console)
    summary = summarise(results)
    found = goals_of(summary, stated) if stated else []
    facts = results.facts[0]
    facts |= {"executor": options.kind, "seconds": round(time.monotonic() - started, 1)}
    facts["seconds_of_runs"] = round(sum(run.seconds for run in results.runs), 1)
    if stated:
        facts["goals"] = [{**asdict(goal), "met": goal.met} for goal in found]
    path = write(results, out)
    print_summary(console, summary)
    for goal in found:
        console.print(str(goal), markup=False)
    console.print(f"results: {path} ({facts['seconds']} s)\nreport:  puf-lab report {out}")
    return Exit.OK if stated is None or all(goal.met for goal in judged(found, stated)) else Exit.FAILURE


def check_device(options: ExecutorOptions, device: str) -> None:
    """Refuses a missing device before files are written. Nodes of a cluster may have other devices."""
    if options.kind != "ray":
        choose(device)


def measured(
    experiment: ExperimentSpec, executor: JobExecutor, cache: Cache, names: tuple[str, ...], console: Console
) -> Results:
    """Performs the missing jobs of an experiment and measures all."""
    if experiment.stop == "product" and experiment.federation.kind != "in-process":
        raise UsageError('stop = "product" follows the model of every round: use --federation in-process')
    own = [v.name for v in experiment.variants if v.method.kind == "forget" and v.recovers]
    if own and experiment.federation.kind != "in-process":
        raise UsageError(f"{own[0]} has its own rounds of recovery, which the lab follows: use --federation in-process")
    console.print(f"[bold]{experiment.title}[/bold] ({experiment.name}, profile {experiment.profile})")
    for line in (experiment.note, *readings(experiment)):
        if line:
            console.print(line, markup=False)
    experiment = experiment.placed(sharing=executor.processes)
    # Loads the user's data, model and task before the first run, which may take hours.
    here = experiment.placed(device="cpu") if executor.elsewhere else experiment
    evaluator_of(here.federation_for(experiment.seeds[0])).check()
    jobs = list(jobs_of(experiment))
    missing = [job for job in jobs if not cache.has(job)]
    console.print(f"{len(jobs)} runs, {len(jobs) - len(missing)} of them done before")
    pairs = pairs_of(experiment)
    _perform(executor, missing, console)
    _score(executor, pairs, names, console)
    return _collect(experiment, here, pairs, cache, names)


def _bar(console: Console) -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    return Progress(*columns, TimeRemainingColumn(), console=console, disable=not console.is_terminal)


def _perform(executor: JobExecutor, missing: list[Job], console: Console) -> None:
    """Performs the jobs in the order of their needs. The bar counts the upper bound of each job's rounds.

    Without a terminal, a line says that the first job has started. One follows for every finished job, and one a minute
    for the rounds.
    """
    done = rounds = 0
    most = sum(job.rounds for job in missing)
    shown = time.monotonic()
    with _bar(console) as progress:
        bar = progress.add_task("starting", total=most)

        def show(event: Event) -> None:
            nonlocal done, rounds, shown
            progress.update(bar, advance=event.rounds, description=event.job.title)
            done += event.done
            rounds += event.rounds
            late = time.monotonic() - shown >= SECONDS_BETWEEN_LINES
            if console.is_terminal or not (event.done or late):
                return
            shown = time.monotonic()
            what = f"{event.job.title} ({event.seconds:.0f} s)" if event.done else f"round {rounds} of at most {most}"
            console.print(f"[{done}/{len(missing)}] {what}", markup=False)

        for wave in ([j for j in missing if not j.needs], [j for j in missing if j.needs]):
            if wave and not console.is_terminal:
                console.print(f"[{done}/{len(missing)}] started: {wave[0].title}", markup=False)
            executor.perform(wave, show)


def _score(executor: JobExecutor, pairs: Sequence[Pair], names: tuple[str, ...], console: Console) -> None:
    """Measures finished jobs. Without a terminal, one line a minute says how many."""
    shown = time.monotonic()
    with _bar(console) as progress:
        bar = progress.add_task("measuring", total=len(pairs))
        for done, job in enumerate(executor.score(pairs, names), 1):
            progress.update(bar, advance=1, description=f"measuring {job.title}")
            if not console.is_terminal and time.monotonic() - shown >= SECONDS_BETWEEN_LINES:
                shown = time.monotonic()
                console.print(f"[{done}/{len(pairs)}] measured: {job.title}", markup=False)


def _collect(
    experiment: ExperimentSpec, here: ExperimentSpec, pairs: Sequence[Pair], cache: Cache, names: tuple[str, ...]
) -> Results:
    """Results of finished and measured jobs. `here` is the experiment on a device of this machine."""
    order = [v.text for v in experiment.variants]
    runs = sorted((_run(job, targets, cache, names) for job, targets in pairs), key=lambda run: order.index(run.method))
    federation = pairs[0][0].federation
    evaluator = evaluator_of(here.federation_for(experiment.seeds[0]))
    facts = {
        "commit": commit(),
        "device": federation.device if federation.device != "cpu" else f"cpu {platform.machine()}",
        "federation": federation.kind,
        "command": shlex.join(["puf-lab", *sys.argv[1:]]),
        "cores": os.cpu_count(),
        "parameters": evaluator.parameters,
        "samples_per_client": [data.samples for data in evaluator.clients],
    }
    labels = {seed: list(_labels(here, seed)) for seed in experiment.seeds}
    return Results(experiment.described(), [facts], runs, {s: c for s, c in labels.items() if c})


def _run(job: Job, targets: tuple[int, ...], cache: Cache, names: tuple[str, ...]) -> Run:
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
        values=score(job, targets, cache, names),
        curve=outcome.get("curve", []),
        ending=outcome.get("ending", ""),
        **{name: outcome[name] for name in ("code", "commit", "device", "federation")},
    )


def _labels(experiment: ExperimentSpec, seed: int) -> Iterator[list[int]]:
    """Samples per class of each client. Empty for tasks without classes."""
    if experiment.federation.task != "classification":
        return
    clients = evaluator_of(experiment.federation_for(seed)).clients
    columns = [[int(data.train_plain[i][1]) for i in range(data.samples)] for data in clients]
    classes = 1 + max(max(labels) for labels in columns)
    yield from (np.bincount(labels, minlength=classes).tolist() for labels in columns)
