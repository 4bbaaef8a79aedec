"""`puf-client check`: everything that can go wrong before joining, tried in a minute."""

from __future__ import annotations

import sys
import time

import torch

from puf_client import routines
from puf_client.cli.options import CheckOptions
from puf_client.data import load_data
from puf_client.transport.dial import certified_name, dial
from puf_client.worker.display import console
from puf_client.worker.trainer import Learner, context_of, prepare, settings_of
from puf_common.config.exit_codes import Exit
from puf_common.errors import UsageError
from puf_common.models.registry import build_any, manifest_of
from puf_common.tensors.manifest import UPDATE
from puf_common.v1 import federation_pb2 as pb

__all__ = ["run_check"]


def run_check(options: CheckOptions) -> Exit:
    """Raises at the first thing that is wrong; prints what was found."""
    out = console()
    description = _description(options)
    started = time.monotonic()
    learner = prepare(options, description)
    loaded = time.monotonic() - started
    data = learner.data
    again = load_data(options.data, context_of(options))
    if list(again.ids) != list(data.ids):
        changed = next((i for i, (a, b) in enumerate(zip(data.ids, again.ids, strict=False)) if a != b), len(data.ids))
        raise UsageError(
            f"the data names its samples differently when it is loaded again (first at {changed}): without stable ids "
            "nothing can be forgotten; derive them from the samples, not from chance or time"
        )
    groups = f" in {len(set(data.groups))} groups" if data.groups is not None else ""
    out.print(
        f"data      {data.samples} training samples{groups}, {data.holdout_samples} held out; loaded in {loaded:.1f} s"
    )
    out.print(f"ids       the same when loaded twice, e.g. {data.ids[0]}" if data.samples else "ids       none")
    size = learner.manifest.nbytes(UPDATE) / 1e6
    out.print(f"model     {learner.manifest.parameters:,} parameters, {size:.1f} MB per update")
    out.print(f"device    {learner.choice.why}")
    if data.samples:
        out.print(_step(learner))
    if data.holdout_samples:
        out.print(_hold_out(learner))
    if options.server:
        wanted = description.plugin_version
        if wanted and learner.plugin_version != wanted:
            raise UsageError(
                f"the federation asks for version {wanted} of its code, here is {learner.plugin_version or 'none'}"
            )
        out.print(f"server    {options.server}: model and task of {description.title} match")
    out.print(f"memory    {_peak_megabytes():.0f} MB at most")
    out.print("everything is in order")
    return Exit.OK


def _description(options: CheckOptions) -> pb.DescribeReply:
    """The federation's own, or one made up from the flags where there is no server to ask."""
    if options.server:
        name = certified_name(options) or "check"
        with dial(options, server=options.server, name=name, patience=options.patience) as transport:
            return transport.describe()
    spec = options.model or "digits-cnn"
    recipe = pb.Recipe(optimizer="sgd", lr=0.01, batch_size=options.batch_size, epochs=1, seed=1, threads=1)
    manifest = manifest_of(build_any(spec, options.model_option, recipe.seed))
    return pb.DescribeReply(
        title="no federation",
        model=spec,
        model_options=options.model_option,
        task=options.task or "classification",
        recipe=recipe,
        manifest=manifest.to_pb(),
    )


def _step(learner: Learner) -> str:
    """One batch, twice: the first pays for what is set up once."""
    recipe = learner.recipe
    batch = routines.select(learner.data.train, range(min(recipe.batch_size, learner.data.samples)))
    seconds = 0.0
    loss = float("nan")
    for _ in range(2):
        started = time.monotonic()
        loss = routines.train(
            learner.model,
            batch,
            learner.task,
            settings_of(recipe, recipe.lr, 1.0),
            device=learner.choice.device,
            stream=lambda epoch: epoch,
        ).loss
        seconds = time.monotonic() - started
    batches = -(-learner.data.samples // recipe.batch_size)
    per_batch = f"{seconds * 1000:.1f} ms per batch of {recipe.batch_size}"
    return f"training  {per_batch}, about {seconds * batches:.1f} s per epoch; loss {loss:.3f}"


def _hold_out(learner: Learner) -> str:
    assert learner.data.holdout is not None
    started = time.monotonic()
    sums = routines.evaluate(learner.model, learner.data.holdout, learner.task, device=learner.choice.device)
    if not 0 <= sums.score_sum <= sums.samples:
        raise UsageError(f"the task's scores must lie between 0 and 1; their mean is {sums.score_sum / sums.samples:g}")
    return f"hold-out  measured in {time.monotonic() - started:.1f} s"


def _peak_megabytes() -> float:
    if torch.cuda.is_available() and torch.cuda.max_memory_allocated():
        return torch.cuda.max_memory_allocated() / 1e6
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1e6 if sys.platform == "darwin" else 1e3)
