"""The metrics of finished jobs, and the data that they need."""

from __future__ import annotations

from puf_lab.evaluation.evaluator import Evaluator, ForgetSet, ModelOutputs, mean_outputs
from puf_lab.evaluation.metrics import compute, stamps
from puf_lab.experiments.cache import Cache
from puf_lab.experiments.forget_samples import forget_set
from puf_lab.experiments.jobs import Job
from puf_lab.spec.federation import FederationSpec


def score(job: Job, targets: tuple[int, ...], cache: Cache, names: tuple[str, ...]) -> dict[str, dict[str, float]]:
    """The metrics of every stage of a finished job, with the forget set of these targets. They are computed once."""
    file = f"scores-{'+'.join(map(str, targets))}.json"
    known = cache.noted(job, file)
    retrained = Job(job.experiment, job.retrain.variant, job.seed, targets)
    made_by = [*stamps(names), *(model.key for model in retrained.references)]
    if known is None or known["stamps"] != made_by:
        stages = cache.outcome(job).get("stages") or {"trained": None}
        forgotten = forgotten_by(retrained)
        reference = _reference(retrained, cache, forgotten)
        # One evaluator for all models of a target: the attacks draw the same samples for each of them.
        evaluator = evaluator_of(retrained.federation)
        found: dict[int | None, dict[str, float]] = {}
        for number in stages.values():
            if number not in found:
                found[number] = compute(evaluator.outputs(cache.payload(job, number), forgotten, reference), names)
        known = {"stamps": made_by, "stages": {stage: found[number] for stage, number in stages.items()}}
        cache.note(job, file, known)
    scores: dict[str, dict[str, float]] = known["stages"]
    return scores


# A process works on one experiment at a time. It loads the data once, and evaluates each reference model once per target.
_EVALUATORS: dict[str, Evaluator] = {}
_REFERENCES: dict[str, ModelOutputs] = {}


def evaluator_of(federation: FederationSpec) -> Evaluator:
    key = repr(federation)
    if key not in _EVALUATORS:
        _EVALUATORS.clear()
        _EVALUATORS[key] = Evaluator(federation)
    return _EVALUATORS[key]


def _reference(job: Job, cache: Cache, forgotten: ForgetSet) -> ModelOutputs:
    """Mean outputs of the models that were retrained with other seeds. All models of a target are compared with them."""
    if job.key not in _REFERENCES:
        evaluator = evaluator_of(job.federation)
        outputs = [evaluator.outputs(cache.payload(model), forgotten) for model in job.references]
        _REFERENCES.clear()
        _REFERENCES[job.key] = mean_outputs(outputs)
    return _REFERENCES[job.key]


def forgotten_by(job: Job) -> ForgetSet:
    """The samples that the job's targets want forgotten."""
    clients = evaluator_of(job.federation).clients if job.experiment.samples else []
    return forget_set(clients, job.targets, job.experiment.samples, job.federation.data_seed)
