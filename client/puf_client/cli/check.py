"""`puf-client check`: tries data, model, task and device before the client joins."""

from __future__ import annotations

import sys
import time

import torch

from puf_client.data import BUILT_IN, ClientData, load_data
from puf_client.data.samples import select
from puf_client.options import CheckOptions
from puf_client.routines.context import RoutineContext
from puf_client.routines.evaluate import evaluate
from puf_client.routines.train import train
from puf_client.terminal import console
from puf_client.transport.dial import certified_name, dial
from puf_client.worker.trainer import Trainer, context_of, prepare, settings_of
from puf_common.config.exit_codes import Exit
from puf_common.errors import UsageError
from puf_common.models.initial import initial_model
from puf_common.models.networks import build_any
from puf_common.tensors.manifest import UPDATE
from puf_common.v1 import federation_pb2 as pb


def run_check(options: CheckOptions) -> Exit:
    """Prints what was found. Raises at the first fault."""
    out = console()
    data = _data(options)
    description = _description(options)
    trainer = prepare(options, description, data)
    model = options.model or description.model
    task = options.task or description.task
    size = trainer.manifest.nbytes(UPDATE) / 1e6
    out.print(f"model     {model}: {trainer.manifest.parameters:,} parameters, {size:.1f} MB per update; task {task}")
    if trainer.base_digest:
        frozen = sum(p.numel() for p in trainer.model.parameters() if not p.requires_grad)
        out.print(f"base      {frozen:,} frozen parameters stay here, digest {trainer.base_digest.hex()[:16]}")
    out.print(f"device    {trainer.choice.why}")
    trainer.check_fit()
    if data.samples:
        out.print(_step(trainer))
    if data.holdout_samples:
        out.print(_holdout(trainer))
    if options.server:
        wanted = description.plugin_version
        if wanted and trainer.plugin_version != wanted:
            raise UsageError(
                f"the federation requires version {wanted} of the plugin code, this version is "
                f"{trainer.plugin_version or 'not set'}"
            )
        out.print(f"server    {options.server}: model and task of {description.title} match")
    out.print(f"memory    {_peak_megabytes():.0f} MB at most")
    out.print(f"everything is in order: {options.data} with the model {model} and the task {task}")
    return Exit.OK


def _data(options: CheckOptions) -> ClientData:
    """Loads the data twice and compares the ids."""
    started = time.monotonic()
    data = load_data(options.data, context_of(options))
    seconds = time.monotonic() - started
    again = load_data(options.data, context_of(options))
    if list(again.ids) != list(data.ids):
        changed = next((i for i, (a, b) in enumerate(zip(data.ids, again.ids, strict=False)) if a != b), len(data.ids))
        raise UsageError(
            f"the data names its samples differently when it is loaded again (first at {changed}): without stable ids "
            "no sample can be forgotten; derive ids from the samples, not from random numbers or the time"
        )
    out = console()
    groups = f" in {len(set(data.groups))} groups" if data.groups is not None else ""
    out.print(
        f"data      {data.samples} training samples{groups}, {data.holdout_samples} held out; loaded in {seconds:.1f} s"
    )
    out.print(f"ids       the same when loaded twice, e.g. {data.ids[0]}" if data.samples else "ids       none")
    return data


def _description(options: CheckOptions) -> pb.DescribeReply:
    """Returns the federation's description, or without a server one with the configured model and task."""
    if options.server:
        name = certified_name(options) or "check"
        with dial(options, server=options.server, name=name, patience=options.patience) as transport:
            return transport.describe()
    if not options.model and options.data not in BUILT_IN:
        raise UsageError(
            "the data is in order, but no model was tried: set --model (or model in the configuration file), or "
            "--server to try the model of a federation"
        )
    spec = options.model or "digits-cnn"
    recipe = pb.Recipe(optimizer="sgd", lr=0.01, batch_size=options.batch_size, epochs=1, seed=1, threads=1)
    first = initial_model(build_any(spec, options.model_option, recipe.seed), recipe.seed)
    return pb.DescribeReply(
        title="no federation",
        model=spec,
        model_options=options.model_option,
        task=options.task or "classification",
        recipe=recipe,
        manifest=first.manifest.to_pb(),
        base_digest=bytes.fromhex(first.base_digest),
        base_seed=first.base_seed,
    )


def _step(trainer: Trainer) -> str:
    """Trains on one batch, twice. The first time includes one-time set-up."""
    recipe = trainer.recipe
    batch = select(trainer.data.train, range(min(recipe.batch_size, trainer.data.samples)))
    context = RoutineContext(trainer.choice.device, lambda epoch: epoch)
    seconds = 0.0
    loss = float("nan")
    for _ in range(2):
        started = time.monotonic()
        loss = train(trainer.model, batch, trainer.task, settings_of(recipe, recipe.lr, 1.0), context).loss
        seconds = time.monotonic() - started
    batches = -(-trainer.data.samples // recipe.batch_size)
    per_batch = f"{seconds * 1000:.1f} ms per batch of {recipe.batch_size}"
    return f"training  {per_batch}, about {seconds * batches:.1f} s per epoch; loss {loss:.3f}"


def _holdout(trainer: Trainer) -> str:
    assert trainer.data.holdout is not None
    started = time.monotonic()
    sums = evaluate(trainer.model, trainer.data.holdout, trainer.task, device=trainer.choice.device)
    if not 0 <= sums.score_sum <= sums.samples:
        raise UsageError(f"the task's scores must be between 0 and 1; their mean is {sums.score_sum / sums.samples:g}")
    return f"hold-out  evaluated in {time.monotonic() - started:.1f} s"


def _peak_megabytes() -> float:
    if torch.cuda.is_available() and torch.cuda.max_memory_allocated():
        return torch.cuda.max_memory_allocated() / 1e6
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1e6 if sys.platform == "darwin" else 1e3)
