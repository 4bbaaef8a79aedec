"""Tables of an experiment: efficacy, persistence, costs, and the comparison with the paper."""

from __future__ import annotations

from puf_lab.evaluation.costs import Cost, Shape, cost
from puf_lab.reporting.beside_paper import beside_paper
from puf_lab.reporting.sheet import MISSING, Sheet, ratio
from puf_lab.reporting.summary import Summary, SummaryRow, compared, format_value


def sheets(summary: Summary) -> list[Sheet]:
    """All tables of an experiment."""
    made = [_efficacy(summary), _lasting(summary), _costs(summary)]
    beside = beside_paper(summary)
    return [*made, beside] if beside else made


def _efficacy(summary: Summary) -> Sheet:
    metrics = compared(summary)
    rows = [
        [
            row.label,
            str(row.values["test"]),
            *(format_value(n, column.get(n)) for n, _ in metrics for column in (row.values, row.deltas)),
            str(row.recovery or MISSING),
            str(row.near or MISSING),
        ]
        for row in summary.rows
    ]
    head = ["method", "test", *(c for _, label in metrics for c in (label, f"Δ {label}"))]
    notes = [
        f"Mean ± sd over {summary.targets} targets and {summary.seeds} seeds, in per cent (except loss). Δ is the mean "
        "of the absolute differences to the model retrained without the same target.",
        "Recovery: rounds to the retrained model's test score, and to one point below it. With ≥ some runs did not "
        "recover in time; they count with the rounds they were given.",
    ]
    if any(name == "rmia" for name, _ in metrics):
        notes.append(
            "RMIA AUC: chance that a forgotten sample looks more like training data than an unseen one, with the "
            "retrained model as reference. 50 is like unseen data; the retrained model itself has 50 by construction."
        )
    return Sheet("efficacy", "What the models know", [*head, "recovery rounds", "to −1 point"], rows, notes)


def _lasting(summary: Summary) -> Sheet:
    """Distances right after unlearning, at the common horizon, and some rounds after completion."""
    e = summary.results.experiment
    stages = [("unlearned", "at once"), ("horizon", f"after {e['horizon']} rounds"), ("recovered", "at completion")]
    stages += [(f"after {n}", f"{n} rounds later") for n in e["persistence"]]
    metrics = [m for m in compared(summary) if m[0] in ("forget", "rmia", "loss")][:2]
    head = ["method", *(f"Δ {label}, {when}" for _, label in metrics for _, when in stages)]
    rows = []
    for row in summary.recovering:
        at = {**row.later, "recovered": row.deltas}
        rows.append([row.label, *(format_value(n, at.get(s, {}).get(n)) for n, _ in metrics for s, _ in stages)])
    notes = [
        "At a fixed horizon all methods have had the same amount of training. Later columns show whether forgotten "
        "knowledge returns."
    ]
    return Sheet("lasting", "At once, at a fixed horizon, and later", head, rows, notes)


def _shape(summary: Summary) -> Shape:
    e, facts = summary.results.experiment, summary.results.facts[0]
    samples = facts["samples_per_client"]
    return Shape(
        parameters=facts["parameters"],
        flops_per_sample=e["model"]["flops_per_sample"],
        samples_per_client=sum(samples) / len(samples),
        clients=e["data"]["clients"],
        targets=len(e["targets"][0]),
        epochs=e["recipe"]["epochs"],
        rounds=e["rounds"],
        head_parameters=e["model"]["head_parameters"],
        targets_stay=e["samples"] is not None,
    )


def _formula_cost(summary: Summary, row: SummaryRow) -> Cost | None:
    """Cost by the paper's appendix, or None for a method without a formula."""
    name = row.label.split()[0]
    known = ("retained_rounds", "calibration_epochs", "ascent_epochs", "degradation_rounds", "guidance_rounds")
    words = (word.split("=", 1) for word in row.method.split()[1:])
    options = {key: float(value) for key, value in words if key in known}
    try:
        return cost(name, _shape(summary), row.recovery.mean if row.recovery else 0.0, **options)
    except ValueError:
        return None


def _costs(summary: Summary) -> Sheet:
    retrained = summary.row("retrain")
    assert retrained is not None
    reference = _formula_cost(summary, retrained)
    rows = []
    for row in (row for row in summary.rows if row.method != "original"):
        formula = _formula_cost(summary, row)
        rows.append(
            [
                row.label,
                f"{row.rounds:.1f}",
                f"{row.nbytes:.3g}",
                ratio(retrained.nbytes, row.nbytes),
                f"{formula.communication:.3g}" if formula else MISSING,
                ratio(reference.communication, formula.communication) if formula and reference else MISSING,
                f"{row.samples:.3g}",
                ratio(retrained.samples, row.samples),
                f"{formula.computation:.3g}" if formula and formula.computation else MISSING,
                f"{formula.storage:.3g}" if formula else MISSING,
            ]
        )
    head = ["method", "rounds", "bytes counted", "less than Retrain", "bytes by formula", "less by formula"]
    head += ["samples trained on", "less than Retrain", "FLOPs by formula", "storage by formula"]
    notes = [
        "Counted: tensor bytes in both directions and samples trained on, in unlearning and recovery. By formula: the "
        "paper's appendix with the mean recovery rounds of this table. FLOPs are shown only if the setting states a "
        "figure per sample."
    ]
    return Sheet("costs", "What it costs", head, rows, notes)
