"""`puf-lab plan`: what a setting would take on this machine, before anybody starts it."""

from __future__ import annotations

import time

from rich.console import Console
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
from puf_lab.experiments.jobs import Job, Place, jobs_of
from puf_lab.experiments.spec import Experiment
from puf_server.rpc.messages import recipe

__all__ = ["show_plan"]

_BATCHES = 3


def show_plan(experiment: Experiment, place: Place, cache: Cache, seconds_per_round: float | None) -> int:
    """Upper bounds: every run is charged for all the rounds it may take."""
    console = Console(highlight=False)
    jobs = list(jobs_of(experiment))
    missing = [job for job in jobs if not cache.has(job)]
    setting = jobs[0].setting(place)
    nbytes = manifest_of(build_any(setting.model, setting.model_options, 1)).nbytes("model")
    measured = seconds_per_round if seconds_per_round is not None else _seconds_per_round(jobs[0], place)
    table = Table("", "runs", "done", "rounds at most", "hours at most", "disk", box=None, header_style="bold")
    for kind in ("original", "retrain", "natural", "forget"):
        mine = [job for job in jobs if job.kind == kind]
        if mine:
            left = [job for job in mine if job in missing]
            rounds = sum(job.rounds for job in left)
            models = sum(_models(job) for job in left)
            hours = f"{rounds * measured / 3600:.2f}"
            done = str(len(mine) - len(left))
            table.add_row(kind, str(len(mine)), done, f"{rounds:,}", hours, f"{models * nbytes / 1e9:.2f} GB")
    rounds = sum(job.rounds for job in missing)
    console.print(f"[bold]{experiment.title}[/bold]\n{experiment.note}".strip())
    console.print(table)
    moved = 2 * nbytes * experiment.data.clients * rounds
    how = "as given" if seconds_per_round is not None else f"measured on {_BATCHES} batches here, {place.device}"
    console.print(
        f"{len(missing)} of {len(jobs)} runs to do, at most {rounds:,} rounds of {measured:.1f} s ({how}): "
        f"{rounds * measured / 3600:.1f} hours one after the other, without measuring; {moved / 1e9:.1f} GB of tensors moved"
    )
    return Exit.OK


def _models(job: Job) -> int:
    """Models that the job leaves on disk: an original keeps its federation beside its model."""
    if job.kind == "original":
        return 4
    return 1 if job.kind == "retrain" else 3 + len(job.experiment.persistence)


def _seconds_per_round(job: Job, place: Place) -> float:
    """From some batches of the largest client; the first, which pays for warming up, does not count."""
    setting = job.setting(place)
    data = [load_data(setting.data, setting.context(shard)) for shard in range(setting.clients)]
    largest = max(data, key=lambda d: d.samples)
    size = min(setting.recipe.batch_size, largest.samples)
    model = build_any(setting.model, setting.model_options, 1)
    device = choose(setting.device).device
    spent = 0.0
    for part in range(1 + _BATCHES):
        chosen = [i % largest.samples for i in range(part * size, (part + 1) * size)]
        samples = select(largest.train, chosen)
        started = time.monotonic()
        settings = settings_of(recipe(setting.federation()), setting.recipe.lr, 1.0)
        train(model, samples, task_named(setting.task), settings, context=RoutineContext(device, lambda epoch: 1))
        spent += (time.monotonic() - started) * (part > 0)
    everybody = sum(d.samples for d in data) * setting.participation * setting.recipe.epochs
    return spent / (_BATCHES * size) * everybody
