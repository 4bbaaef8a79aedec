"""`puf-lab plan`: runs, hours and disk space that a setting would take on this machine."""

from __future__ import annotations

import time

from rich.table import Table

from puf_client.data import load_data
from puf_client.data.samples import select
from puf_client.routines.context import RoutineContext
from puf_client.routines.train import train
from puf_client.tasks import task_named
from puf_client.worker.devices import choose
from puf_client.worker.trainer import settings_of
from puf_common.config.exit_codes import Exit
from puf_common.models.module_tensors import manifest_of
from puf_common.models.networks import build_any
from puf_lab.experiments.cache import Cache
from puf_lab.experiments.jobs import Job, jobs_of
from puf_lab.reporting.terminal import new_console
from puf_lab.spec.experiment import ExperimentSpec
from puf_lab.spec.federation import FederationSpec
from puf_server.rpc.messages import recipe

_BATCHES = 3


def show_plan(experiment: ExperimentSpec, cache: Cache, seconds_per_round: float | None) -> int:
    """Prints upper bounds: every run counts with all the rounds that it may take."""
    console = new_console()
    jobs = list(jobs_of(experiment))
    missing = [job for job in jobs if not cache.has(job)]
    federation = jobs[0].federation
    config = federation.server_config()
    nbytes = manifest_of(build_any(config.model, config.model_options, 1)).nbytes("model")
    seconds = seconds_per_round if seconds_per_round is not None else _seconds_per_round(federation)
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
    rounds = sum(job.rounds for job in missing)
    console.print(f"[bold]{experiment.title}[/bold]\n{experiment.note}".strip())
    console.print(table)
    moved = 2 * nbytes * federation.clients * rounds
    how = "as given" if seconds_per_round is not None else f"measured on {_BATCHES} batches here, {federation.device}"
    console.print(
        f"{len(missing)} of {len(jobs)} runs to do, at most {rounds:,} rounds of {seconds:.1f} s ({how}): "
        f"{rounds * seconds / 3600:.1f} hours one after the other, without measuring; {moved / 1e9:.1f} GB of tensors moved"
    )
    return Exit.OK


def _models(job: Job) -> int:
    """Models that the job leaves on disk. An original also keeps its federation."""
    if job.kind == "original":
        return 4
    return 1 if job.kind == "retrain" else 3 + len(job.experiment.persistence)


def _seconds_per_round(federation: FederationSpec) -> float:
    """An estimate from some batches of the largest client. The first batch is warm-up and does not count."""
    clients = [load_data(federation.data.name, federation.context(shard)) for shard in range(federation.clients)]
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
