"""What a method costs by the formulas of the paper's appendix, in a setting and with the options that it has there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from puf_lab.evaluation.costs import Cost, Shape, cost

# Names in the formulas of options of methods.
_FORMULA = {
    ("FedEraser", "epochs"): "calibration_epochs",
    ("PGA", "epochs"): "ascent_epochs",
    ("MoDe", "rounds"): "guidance_rounds",
    ("MoDe", "degrade_rounds"): "degradation_rounds",
}


def shape_of(experiment: Mapping[str, Any], *, parameters: int, samples_per_client: float) -> Shape:
    """The sizes of an experiment, as its file describes it, with a model and data of these sizes."""
    return Shape(
        parameters=parameters,
        flops_per_sample=experiment["model"]["flops_per_sample"],
        samples_per_client=samples_per_client,
        clients=experiment["data"]["clients"],
        targets=len(experiment["targets"][0]),
        epochs=experiment["recipe"]["epochs"],
        rounds=experiment["rounds"],
        head_parameters=experiment["model"]["head_parameters"],
        targets_stay=experiment["samples"] is not None,
    )


def formula_cost(label: str, options: Mapping[str, str], shape: Shape, recovery_rounds: float) -> Cost | None:
    """Cost of unlearning and recovery, or None for a method without a formula."""
    name = label.split()[0]
    given = {_FORMULA[name, key]: float(value) for key, value in options.items() if (name, key) in _FORMULA}
    if name == "FedEraser":
        given["retained_rounds"] = -(-shape.rounds // int(options.get("delta_t", 1)))
    if name.startswith("PUF"):
        shape = replace(shape, unlearning_epochs=float(options.get("epochs", 1)))
    try:
        return cost(name, shape, recovery_rounds, **given)
    except ValueError:
        return None
