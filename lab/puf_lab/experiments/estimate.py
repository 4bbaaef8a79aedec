"""`puf-lab plan`: runs, hours and disk space that a setting would take on this machine."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np
from rich.console import Console
from rich.table import Table

from puf_client.data import ClientData, load_data, test_set
from puf_client.data.samples import count, select
from puf_client.routines.context import RoutineContext
from puf_client.routines.evaluate import fitting, per_sample
from puf_client.routines.per_sample import PerSample
from puf_client.routines.train import train
from puf_client.tasks import task_named
from puf_client.worker.devices import choose
from puf_client.worker.trainer import acceleration_of, settings_of
from puf_common.config import plugins
from puf_common.config.exit_codes import Exit
from puf_common.models.module_tensors import manifest_of
from puf_common.models.networks import build_any
from puf_lab.evaluation.evaluator import LINE_POINTS, ModelOutputs
from puf_lab.evaluation.metrics import compute, names_for
from puf_lab.experiments.cache import Cache
from puf_lab.experiments.jobs import Job, jobs_of, pairs_of
from puf_lab.experiments.measuring import scored, sets_of
from puf_lab.reporting.terminal import new_console
from puf_lab.spec.experiment import ExperimentSpec
from puf_lab.spec.federation import FederationSpec
from puf_server.rpc.messages import recipe

_BATCHES = 3
# Stages that every run has: unlearned, horizon, equal and recovered.
_STAGES = 4
_EVALUATION_BATCH = 256


@dataclass(frozen=True)
class Sizes:
    """Numbers of samples: of each client, in the test set, and by targets in the named evaluation sets together."""

    clients: tuple[int, ...]
    test: int
    sets: Mapping[tuple[int, ...], int]

    def forget(self, targets: tuple[int, ...]) -> int:
        """All samples of the targets. A request may name fewer."""
        return sum(self.clients[target] for target in targets)


@dataclass(frozen=True)
class Measuring:
    """Work of measuring: samples on which models are evaluated, and models whose metrics are computed."""

    samples: int
    models: int


def show_plan(experiment: ExperimentSpec, cache: Cache, seconds_per_round: float | None) -> int:
    """Prints upper bounds: every run counts with all the rounds and stages that it may have."""
    console = new_console()
    jobs = list(jobs_of(experiment))
    missing = [job for job in jobs if not cache.has(job)]
    federation = jobs[0].federation
    rounds = sum(job.rounds for job in missing)
    if seconds_per_round is not None:
        seconds, measuring, how = seconds_per_round, None, "as given"
    else:
        clients = [load_data(federation.data.name, federation.context(shard)) for shard in range(federation.clients)]
        seconds, measuring = _seconds_per_round(federation, clients), _measuring_seconds(experiment, clients, cache)
        how = f"measured on {_BATCHES} batches here, {federation.device}"
    console.print(f"[bold]{experiment.title}[/bold]\n{experiment.note}".strip())
    nbytes = _print_table(console, jobs, missing, seconds, measuring)
    moved = 2 * nbytes * federation.clients * rounds
    hours = (rounds * seconds + (measuring or 0)) / 3600
    part = "without measuring" if measuring is None else f"{measuring / 3600:.1f} of them for measuring"
    console.print(
        f"{len(missing)} of {len(jobs)} runs to do, at most {rounds:,} rounds of {seconds:.1f} s ({how}): "
        f"{hours:.1f} hours one after the other, {part}; {moved / 1e9:.1f} GB of tensors moved"
    )
    return Exit.OK


def _print_table(
    console: Console, jobs: Collection[Job], missing: Collection[Job], seconds: float, measuring: float | None
) -> int:
    """Prints a row for every kind of run and one for measuring. Returns the bytes of the model."""
    config = next(iter(jobs)).federation.server_config()
    nbytes = manifest_of(build_any(config.model, config.model_options, 1)).nbytes("model")
    table = Table("", "runs", "done", "rounds at most", "hours at most", "disk", box=None, header_style="bold")
    for kind in ("original", "retrain", "natural", "forget"):
        mine = [job for job in jobs if job.kind == kind]
        if mine:
            left = [job for job in mine if job in missing]
            rounds = sum(job.rounds for job in left)
            models = sum(_models(job) for job in left)
            hours = f"{rounds * seconds / 3600:.2f}"
            done = str(len(mine) - len(left))
            table.add_row(kind, str(len(mine)), done, f"{rounds:,}", hours, f"{models * nbytes / 1e9:.2f} GB")
    if measuring is not None:
        table.add_row("measuring", "", "", "", f"{measuring / 3600:.2f}", "")
    console.print(table)
    return nbytes


def _models(job: Job) -> int:
    """Models that the job leaves on disk. An original also keeps its federation."""
    if job.kind == "original":
        return 4
    return 1 if job.kind == "retrain" else 3 + len(job.experiment.persistence)


def measuring_of(experiment: ExperimentSpec, cache: Cache, sizes: Sizes) -> Measuring:
    """Upper bound of what is left to measure: every round of a followed run, and every stage of a finished one."""
    names = names_for(experiment.federation.task)
    everything = sum(sizes.clients) + sizes.test
    samples = models = 0
    for job in jobs_of(experiment):
        if job.needs and not cache.has(job):
            # The goal, the model right after unlearning, and that of every round.
            samples += (2 + job.rounds) * (sizes.test + sizes.forget(job.targets))
    compared = set()
    for job, targets in pairs_of(experiment):
        if scored(job, targets, cache, names) is None:
            stages = _STAGES + len(experiment.persistence) if job.needs else 1
            samples += stages * (everything + LINE_POINTS * sizes.forget(targets) + sizes.sets[targets])
            models += stages
            compared.add((job.seed, targets))
    # The original, Retrain and the references are evaluated once more for every target.
    samples += len(compared) * (2 + experiment.references) * everything
    return Measuring(samples, models)


def _measuring_seconds(experiment: ExperimentSpec, clients: list[ClientData], cache: Cache) -> float:
    """An estimate from some batches, and from one computation of the metrics on made-up outputs."""
    federation = experiment.federation_for(experiment.seeds[0])
    context = federation.context(0)
    functions = [plugins.load(spec) for spec in sets_of(experiment).values()]
    sizes = Sizes(
        clients=tuple(data.samples for data in clients),
        test=count(test_set(federation.data.name, context)),
        sets={t: sum(count(plugins.call(function, context, t)) for function in functions) for t in experiment.targets},
    )
    left = measuring_of(experiment, cache, sizes)
    if not left.models:
        return 0.0
    return left.samples * _seconds_per_evaluated(federation, clients) + left.models * _seconds_of_metrics(
        federation.task, sizes, max(experiment.targets, key=sizes.forget)
    )


def _seconds_per_round(federation: FederationSpec, clients: list[ClientData]) -> float:
    """An estimate from some batches of the largest client. The first batch is warm-up and does not count."""
    largest = max(clients, key=lambda data: data.samples)
    config = federation.server_config()
    size = min(config.recipe.batch_size, largest.samples)
    model = build_any(config.model, config.model_options, 1)
    device = choose(federation.device).device
    spent = 0.0
    for part in range(1 + _BATCHES):
        chosen = [i % largest.samples for i in range(part * size, (part + 1) * size)]
        samples = select(largest.train, chosen)
        started = time.monotonic()
        settings = settings_of(recipe(config), config.recipe.lr, 1.0)
        train(model, samples, task_named(config.task), settings, context=RoutineContext(device, lambda epoch: 1))
        spent += (time.monotonic() - started) * (part > 0)
    trained = sum(data.samples for data in clients) * federation.participation * config.recipe.epochs
    return spent / (_BATCHES * size) * trained


def _seconds_per_evaluated(federation: FederationSpec, clients: list[ClientData]) -> float:
    """The same for one sample of an evaluation."""
    largest = max(clients, key=lambda data: data.samples)
    config = federation.server_config()
    size = min(_EVALUATION_BATCH, fitting(largest.train_plain), largest.samples)
    model = build_any(config.model, config.model_options, 1)
    device, how, task = choose(federation.device).device, acceleration_of(recipe(config)), task_named(config.task)
    spent = 0.0
    for part in range(1 + _BATCHES):
        chosen = [i % largest.samples for i in range(part * size, (part + 1) * size)]
        samples = select(largest.train_plain, chosen)
        started = time.monotonic()
        per_sample(model, samples, task, device=device, how=how)
        spent += (time.monotonic() - started) * (part > 0)
    return spent / (_BATCHES * size)


def _seconds_of_metrics(task: str, sizes: Sizes, targets: tuple[int, ...]) -> float:
    """Seconds to compute the metrics of one model. A first computation on few samples loads what they import."""
    forget = sizes.forget(targets)
    started = 0.0
    for most in (10, max(sizes.test, sum(sizes.clients))):
        test, retained, forgotten = (_random(min(most, n)) for n in (sizes.test, sum(sizes.clients) - forget, forget))
        outputs = ModelOutputs(test, retained, forgotten, seed=1)
        beside = ModelOutputs(test, retained, forgotten, 1, reference=outputs, original=outputs, retrained=outputs)
        started = time.monotonic()
        compute(beside, names_for(task))
    return time.monotonic() - started


def _random(samples: int) -> PerSample:
    """Outputs that do not tell members from others: attacks take longest on them."""
    confidences = np.random.default_rng(samples).uniform(0.01, 1, samples)
    return PerSample(-np.log(confidences), confidences.round(), confidences, np.zeros(samples, np.int64))
