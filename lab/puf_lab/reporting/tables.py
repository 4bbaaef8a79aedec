"""Tables of an experiment: efficacy, persistence, costs, and the comparison with the paper."""

from __future__ import annotations

from puf_lab.evaluation.costs import Cost
from puf_lab.evaluation.statistics import MIN_CELLS
from puf_lab.reporting.beside_paper import beside_paper
from puf_lab.reporting.beyond_floor import beyond_floor
from puf_lab.reporting.evidence_table import evidence
from puf_lab.reporting.formula_costs import formula_cost, shape_of
from puf_lab.reporting.marks import full_name, mark_notes, short_name
from puf_lab.reporting.resurfacing import resurfacing
from puf_lab.reporting.sheet import MISSING, Sheet, operations, ratio, size
from puf_lab.reporting.stop_rules import stop_rules
from puf_lab.reporting.summary import Summary, SummaryRow, compared, format_value
from puf_lab.reporting.tuning_note import tuning_note

# Other numbers that RMIA gives, with their heads.
_RATES = (("rmia_member_at_1", "TPR at 1 % FPR"), ("rmia_member_at_01", "TPR at 0.1 % FPR"))


def sheets(summary: Summary) -> list[Sheet]:
    """All tables of an experiment."""
    made = [_efficacy(summary), _lasting(summary), resurfacing(summary), evidence(summary), _pairs(summary)]
    made += [beyond_floor(summary), stop_rules(summary), _costs(summary), beside_paper(summary)]
    return [sheet for sheet in made if sheet is not None]


def short_table(summary: Summary) -> Sheet:
    """The table for terminals: distances at completion, recovery and cost."""
    metrics = compared(summary)
    rows = [
        [
            short_name(summary, row),
            f"{row.values['test'].mean:.1f}",
            f"{row.values['forget'].mean:.1f}",
            *(_distance(row, name) for name, _ in metrics),
            str(row.recovery or MISSING).replace(" ± ", "±"),
            f"{row.nbytes / 1e6:,.1f}",
        ]
        for row in summary.rows
    ]
    head = ["", "test", "forget", *(f"Δ {label}" for _, label in metrics), "recovery rounds", "MB"]
    notes = [
        f"Mean over {summary.runs_text} [95 % bootstrap interval]. Δ is the distance to the model retrained without "
        "the target.",
        *_ranking_notes(summary),
    ]
    return Sheet("short", "", head, rows, notes, _best(summary, [(3 + i, n) for i, (n, _) in enumerate(metrics)]))


def _efficacy(summary: Summary) -> Sheet:
    metrics, experiment = compared(summary), summary.results.experiment
    rates = [(name, head) for name, head in _RATES if name in summary.rows[0].values]
    rows = [
        [
            short_name(summary, row),
            str(row.values["test"]),
            *(text for n, _ in metrics for text in (format_value(n, row.values.get(n)), _distance(row, n))),
            *(format_value(name, row.values.get(name)) for name, _ in rates),
            str(row.recovery or MISSING),
            str(row.near or MISSING),
        ]
        for row in summary.rows
    ]
    head = ["method", "test", *(c for _, label in metrics for c in (label, f"Δ {label}")), *(head for _, head in rates)]
    notes = [
        f"Mean ± sd over {summary.runs_text}, in per cent (except loss). Δ is the mean "
        "of the absolute differences to the model retrained without the same target, with its 95 % bootstrap interval "
        "over seeds and targets.",
        *_ranking_notes(summary),
        " ".join([f"Profile {experiment['profile']}.", *experiment.get("readings", ())]),
        tuning_note(experiment, {row.method.split()[0]: row.label.split()[0] for row in summary.recovering}),
        _RECOVERY_NOTES[experiment.get("stop", "paper")],
    ]
    if any(name == "rmia" for name, _ in metrics):
        notes.append(_RMIA_NOTES[summary.floor is not None])
    best = _best(summary, [(3 + 2 * i, name) for i, (name, _) in enumerate(metrics)])
    head += ["recovery rounds", "to −1 point"]
    return Sheet("efficacy", "What the models know", head, rows, notes, best, _floor_rows(summary))


_RECOVERY_NOTES = {
    "paper": "Recovery: rounds to the retrained model's test score, and to one point below it. With ≥ some runs did not "
    "recover in time; they count with the rounds they were given.",
    "product": "Recovery: rounds until the service itself completed the request, and to one point below the retrained "
    "model's test score. With ≥ the service did not call some runs recovered.",
}
# Runs of version 0.1.0 have no noise floor, and the retrained model itself as the reference.
_RMIA_NOTES = {
    True: "RMIA AUC: chance that a forgotten sample looks more like training data than an unseen one. The reference "
    "models were retrained without the target with other seeds. 50 is like unseen data. TPR at FPR: share of the "
    "forgotten samples that are recognised where so many unseen ones are taken for training data.",
    False: "RMIA AUC: chance that a forgotten sample looks more like training data than an unseen one, with the "
    "retrained model as reference. 50 is like unseen data; the retrained model itself has 50 by construction.",
}


def _distance(row: SummaryRow, metric: str, stage: str = "end") -> str:
    interval = row.interval(metric, stage)
    return MISSING if interval is None else interval.text(2 if metric == "loss" else 1)


def _best(summary: Summary, columns: list[tuple[int, str]], stage: str = "end") -> frozenset[tuple[int, int]]:
    """Cells of the best values of these (column, metric)."""
    found = {column: summary.best(metric, stage) for column, metric in columns}
    return frozenset((i, c) for c, best in found.items() for i, row in enumerate(summary.rows) if row.method in best)


def _floor_rows(summary: Summary) -> frozenset[int]:
    return frozenset(i for i, row in enumerate(summary.rows) if row is summary.floor)


def _ranking_notes(summary: Summary) -> list[str]:
    if summary.floor is None:
        return [
            "These runs have no noise floor (Retrain against Retrain with another training seed): nothing is ranked."
        ]
    notes = [
        "Noise floor: Retrain against Retrain with another training seed. Bold: closest to Retrain, or not "
        "distinguishable from the closest. Without bold all differences are inside the noise, or there are fewer than "
        f"{MIN_CELLS} runs."
    ]
    return [*notes, *mark_notes(summary)]


def _lasting(summary: Summary) -> Sheet:
    """Distances right after unlearning, at the common horizon, at equal accuracy, and some rounds after completion."""
    e = summary.results.experiment
    stages = [("unlearned", "at once"), ("horizon", f"after {e['horizon']} rounds")]
    stages += [("equal", "at equal test accuracy"), ("end", "at completion")]
    stages += [(f"after {n}", f"{n} rounds later") for n in e["persistence"]]
    metrics = [m for m in compared(summary) if m[0] in ("forget", "rmia", "loss")][:2]
    head = ["method", *(f"Δ {label}, {when}" for _, label in metrics for _, when in stages)]
    rows = []
    for row in summary.recovering:
        cells = [_distance(row, n, s) + _some(row, n, s) for n, _ in metrics for s, _ in stages]
        rows.append([full_name(summary, row), *cells])
    if summary.floor:
        rows.append([summary.floor.label, *(_distance(summary.floor, n) for n, _ in metrics for _ in stages)])
    notes = [
        "At a fixed horizon all methods have had the same number of recovery rounds. At equal test accuracy: the first "
        "round at most one point below Retrain, for the runs that reach it. Later columns show whether forgotten "
        "knowledge returns.",
        *_ranking_notes(summary),
    ]
    shaded = frozenset([len(rows) - 1]) if summary.floor else frozenset[int]()
    return Sheet("lasting", "At once, at equal accuracy, at completion, and later", head, rows, notes, shaded=shaded)


def _some(row: SummaryRow, metric: str, stage: str) -> str:
    """How many runs a cell stands for, if not for all."""
    cells = row.distances.get(stage, {}).get(metric, {})
    return f" ({len(cells)} of {row.runs})" if 0 < len(cells) < row.runs else ""


def _pairs(summary: Summary) -> Sheet | None:
    """Every method against one baseline, on the same targets and seeds."""
    rows = summary.recovering
    baseline = next((row for row in rows if row.method.split()[0] == "puf-regular"), rows[0] if rows else None)
    others = [row for row in rows if row is not baseline]
    if baseline is None or not others:
        return None
    metrics = compared(summary)
    body = []
    for row in others:
        cells = []
        for name, _ in metrics:
            difference, clear = summary.compare(row, baseline, name)
            ranked = clear and summary.is_compared(row) and summary.is_compared(baseline)
            word = "" if not ranked else " closer" if difference.mean < 0 else " further"
            cells.append(difference.text(2 if name == "loss" else 1) + word)
        body.append([full_name(summary, row), *cells])
    head = [f"against {full_name(summary, baseline)}", *(f"Δ {label}" for _, label in metrics)]
    notes = [
        f"Δ of the method minus Δ of {baseline.label} on the same targets and seeds, with the 95 % bootstrap interval. "
        "Negative: closer to Retrain. A word follows only where the interval excludes zero and the difference exceeds "
        f"the noise floor, with at least {MIN_CELLS} pairs, and where both methods are ranked and most of their runs "
        "recovered.",
        *mark_notes(summary),
    ]
    return Sheet("pairs", "Paired comparison", head, body, notes)


def _formula_cost(summary: Summary, row: SummaryRow) -> Cost | None:
    """Cost by the paper's appendix, or None for a method without a formula."""
    facts = summary.results.facts[0]
    samples = facts["samples_per_client"]
    shape = shape_of(
        summary.results.experiment,
        parameters=facts["parameters"],
        samples_per_client=sum(samples) / len(samples),
    )
    options = dict(word.split("=", 1) for word in row.method.split()[1:])
    return formula_cost(row.label, options, shape, row.recovery.mean if row.recovery else 0.0)


def _costs(summary: Summary) -> Sheet:
    retrained = summary.row("retrain")
    assert retrained is not None
    reference = _formula_cost(summary, retrained)
    rows = []
    for row in (row for row in summary.rows if row.method not in ("original", "floor")):
        formula = _formula_cost(summary, row)
        rows.append(
            [
                full_name(summary, row),
                f"{row.rounds:.1f}",
                size(row.nbytes),
                ratio(retrained.nbytes, row.nbytes),
                size(formula.communication) if formula else MISSING,
                ratio(reference.communication, formula.communication) if formula and reference else MISSING,
                f"{row.samples:,.0f}",
                ratio(retrained.samples, row.samples),
                operations(formula.computation) if formula and formula.computation else MISSING,
                size(formula.storage) if formula else MISSING,
            ]
        )
    head = ["method", "rounds", "bytes counted", "less than Retrain", "bytes by formula", "less by formula"]
    head += ["samples trained on", "less than Retrain", "operations by formula", "storage by formula"]
    notes = [
        "Counted: tensor bytes in both directions and samples trained on, in unlearning and recovery. By formula: the "
        "paper's appendix with the mean recovery rounds of this table. Operations (FLOP) are shown only if the setting "
        "states a figure per sample.",
        *mark_notes(summary),
    ]
    return Sheet("costs", "What it costs", head, rows, notes)
