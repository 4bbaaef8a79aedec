"""The metrics of finished jobs, and the data that they need."""

from __future__ import annotations

from puf_common.config import plugins
from puf_lab.evaluation.evaluator import Beside, Evaluator, ForgetSet, mean_outputs
from puf_lab.evaluation.metrics import compute, stamps
from puf_lab.experiments.cache import Cache
from puf_lab.experiments.forget_samples import forget_set
from puf_lab.experiments.jobs import Job
from puf_lab.spec.experiment import ExperimentSpec
from puf_lab.spec.federation import FederationSpec
from puf_lab.spec.user_code import digest

BACKDOOR_SET = "puf_lab.federations.backdoor:triggered"


def scored(
    job: Job, targets: tuple[int, ...], cache: Cache, names: tuple[str, ...]
) -> dict[str, dict[str, float]] | None:
    """The stored metrics of every stage of a job. None if they are to be computed: for the first time or again."""
    known = cache.noted(job, _file(targets))
    if known is None or known["stamps"] != _made_by(job, targets, names):
        return None
    stages: dict[str, dict[str, float]] = known["stages"]
    return stages


def score(job: Job, targets: tuple[int, ...], cache: Cache, names: tuple[str, ...]) -> dict[str, dict[str, float]]:
    """The metrics of every stage of a finished job, with the forget set of these targets. They are computed once."""
    known = scored(job, targets, cache, names)
    if known is not None:
        return known
    stages = cache.outcome(job).get("stages") or {"trained": None}
    retrained = _retrained(job, targets)
    forgotten = forgotten_by(retrained)
    beside = _beside(retrained, cache, forgotten)
    # One evaluator for all models of a target: the attacks draw the same samples for each of them.
    evaluator = evaluator_of(retrained.federation)
    found: dict[int | None, dict[str, float]] = {}
    for number in stages.values():
        if number not in found:
            found[number] = compute(evaluator.outputs(cache.payload(job, number), forgotten, beside), names)
    scores = {stage: found[number] for stage, number in stages.items()}
    cache.note(job, _file(targets), {"stamps": _made_by(job, targets, names), "stages": scores})
    return scores


def _file(targets: tuple[int, ...]) -> str:
    return f"scores-{'+'.join(map(str, targets))}.json"


def _retrained(job: Job, targets: tuple[int, ...]) -> Job:
    return Job(job.experiment, job.retrain.variant, job.seed, targets)


def _made_by(job: Job, targets: tuple[int, ...], names: tuple[str, ...]) -> list[str]:
    """What the metrics depend on: their code, the models they are compared with, and the evaluation sets."""
    retrained = _retrained(job, targets)
    others = (job.original, retrained, *retrained.references)
    sets = [f"{name} {digest(spec)}" for name, spec in sorted(sets_of(job.experiment).items())]
    return [*stamps(names), *(model.key for model in others), *sets]


# A process works on one experiment at a time. It loads the data once, and evaluates each reference model once per target.
_EVALUATORS: dict[str, Evaluator] = {}
_BESIDE: dict[str, Beside] = {}


def evaluator_of(federation: FederationSpec) -> Evaluator:
    key = repr(federation)
    if key not in _EVALUATORS:
        _EVALUATORS.clear()
        _EVALUATORS[key] = Evaluator(federation)
    return _EVALUATORS[key]


def _beside(job: Job, cache: Cache, forgotten: ForgetSet) -> Beside:
    """What all models of a target are compared with: the original, Retrain, and models retrained with other seeds."""
    if job.key not in _BESIDE:
        evaluator = evaluator_of(job.federation)
        before = cache.payload(job.original)
        references = [
            evaluator.with_frozen_of(model.federation).outputs(cache.payload(model), forgotten)
            for model in job.references
        ]
        context = job.federation.context(0)
        _BESIDE.clear()
        _BESIDE[job.key] = Beside(
            reference=mean_outputs(references),
            original=evaluator.outputs(before, forgotten),
            retrained=evaluator.outputs(cache.payload(job), forgotten),
            before=before,
            sets={
                name: plugins.call(plugins.load(spec), context, job.targets)
                for name, spec in sets_of(job.experiment).items()
            },
        )
    return _BESIDE[job.key]


def sets_of(experiment: ExperimentSpec) -> dict[str, str]:
    """The named evaluation sets with their functions. A backdoor adds one."""
    return {**experiment.evaluation_sets, **({"backdoor": BACKDOOR_SET} if experiment.backdoor else {})}


def forgotten_by(job: Job) -> ForgetSet:
    """The samples that the job's targets want forgotten."""
    clients = evaluator_of(job.federation).clients if job.experiment.samples else []
    return forget_set(clients, job.targets, job.experiment.samples, job.federation.data_seed)
