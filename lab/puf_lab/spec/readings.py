"""Which reading of the paper an experiment follows, in sentences for every output."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from puf_lab.spec.variants import Variant
from puf_server.core.methods.fedau import FedauOptions

if TYPE_CHECKING:
    from puf_lab.spec.experiment import ExperimentSpec

# In the code each of them has units or weights that contradict the method's equations.
_PGA_IN_CODE = (
    "PGA follows its equations, not the authors' code, in the radius (a third of the mean distance), clipping (over all "
    "tensors), the ball's centre (weighted by samples) and the rate (0.01)."
)

_PLAIN = (
    "Rounds of unlearning are without augmentation, except those of FedEraser, rapid retraining and MoDe's degradation."
)
_PGA_WITH_ADAMW = "The ascent of PGA is momentum SGD, also where the authors' code has AdamW."
_PROSTATE_IN_CODE = (
    "PUF has the paper's rates. The authors' script for prostate has others: 7, 8 and 19 in Special, 120 in Regular."
)


def readings(experiment: ExperimentSpec) -> list[str]:
    """What the methods of the experiment do where the paper and the authors' code allow more than one reading."""
    variants = experiment.variants
    puf = [v for v in variants if v.is_puf]
    found = [_unlearning_epochs(puf, experiment.federation.recipe.epochs)] if puf else []
    if experiment.federation.recipe.plain_unlearning and any(v.method.kind == "forget" for v in variants):
        found.append(_PLAIN)
    if experiment.samples is not None:
        found += [_samples(v) for v in puf if v.method.mode == "regular"]
    heads = [_auxiliary_weight(v) for v in variants if v.name == "fedau"]
    if heads:
        stated = ", ".join(f"{weight:g}" for weight in sorted(set(heads)))
        found.append(f"FedAU: the weight of the auxiliary head is {stated}; the model's own head has the rest.")
    if experiment.profile == "author-code" and any(v.name == "pga" for v in variants):
        found.append(_PGA_IN_CODE)
        if experiment.federation.recipe.optimizer == "adamw":
            found.append(_PGA_WITH_ADAMW)
    if experiment.profile == "author-code" and experiment.federation.data.name == "prostate":
        found.append(_PROSTATE_IN_CODE)
    return list(dict.fromkeys(found))


def _unlearning_epochs(puf: Sequence[Variant], epochs: int) -> str:
    stated = sorted({int(float(dict(v.options)["epochs"])) for v in puf})
    return f"E_u, the target's epochs in PUF's unlearning round: {', '.join(map(str, stated))} (E = {epochs})."


def _auxiliary_weight(variant: Variant) -> float:
    return float(dict(variant.options).get("alpha_aux", FedauOptions().alpha_aux))


def _samples(variant: Variant) -> str:
    with_rest = dict(variant.options).get("rest", "true").lower() not in ("false", "0", "no")
    sends = "its negated update and an update of its other samples" if with_rest else "only its negated update"
    strength = ", ".join(f"{k} = {v}" for k, v in variant.options if k in ("kappa", "eta_u")) or "the policy's kappa"
    return f"Single samples in PUF-Regular: the target sends {sends}, {strength}."
