"""What an experiment found, in a few sentences: what there is to forget, who forgets it, and at what cost."""

from __future__ import annotations

from collections.abc import Sequence

from puf_lab.reporting.sheet import size
from puf_lab.reporting.summary import LEAST_RECOVERED, Summary, SummaryRow
from puf_lab.reporting.tuning_note import supported


def findings(summary: Summary) -> list[str]:
    """Three sentences: what there is to forget, who forgets it, the cost. Nothing inside the noise floor is a difference."""
    return [_to_forget(summary), _closest(summary), _cost(summary)]


def _to_forget(summary: Summary) -> str:
    if summary.gap is None:
        return "These runs have no original, so what there is to forget is not known."
    floor = summary.floor_of("forget")
    noise = (
        f"two retrained models differ by {floor.text()}" if floor else "there is no noise floor, so nothing is ranked"
    )
    judgement = {
        True: "There is something to forget",
        False: "What there is to forget is within chance",
        None: "What there is to forget, from a single run",
    }[summary.measurable]
    return f"{judgement}: on the forget data the original is {summary.gap} points from Retrain, and {noise}."


def _closest(summary: Summary) -> str:
    """Which methods are closest to Retrain on the forget data, as far as the noise permits to say so."""
    best = summary.best("forget")
    unranked = [row for row in summary.recovering if not summary.is_ranked(row)]
    compared = [row for row in summary.recovering if summary.is_compared(row)]
    partly = [row for row in summary.recovering if row not in unranked and row not in compared]
    found = ["No method is distinguishably closer to Retrain than the others on the forget data"]
    if best:
        closest, others = ([row for row in compared if (row.method in best) is among] for among in (True, False))
        tuned = supported(summary.results.experiment, [_name(row) for row in others])
        further, untuned = ([row for row in others if (_name(row) in tuned) is among] for among in (True, False))
        found = [f"Closest to Retrain on the forget data, or not distinguishable from the closest: {_names(closest)}"]
        if further:
            found.append(f"further than the closest, by more than the noise: {_names(further)}")
        if untuned:
            what = "further with values that no sweep chose, so no conclusion about the methods"
            found.append(f"{what}: {_names(untuned)}")
    if unranked:
        found.append(f"not ranked, because their models did not recover: {_names(unranked)}")
    if partly:
        share = f"fewer than {100 * LEAST_RECOVERED:.0f} per cent of their runs recovered"
        found.append(f"not called closest, because {share}: {_names(partly)}")
    return "; ".join(found) + "."


def _name(row: SummaryRow) -> str:
    return row.method.split()[0]


def _names(rows: Sequence[SummaryRow]) -> str:
    return ", ".join(row.label for row in rows)


def _cost(summary: Summary) -> str:
    """The cheapest of the closest methods. Without closest ones, of those that unlearn: Natural costs least and forgets least."""
    compared = [row for row in summary.recovering if summary.is_compared(row) and _name(row) != "natural"]
    closest = [row for row in compared if row.method in summary.best("forget")]
    retrained = summary.row("retrain")
    if not compared or retrained is None:
        return "Of no method that unlearns most runs recovered, so no cost is compared."
    who = "Of the closest methods" if closest else "Of the methods that unlearn and recovered"
    cheapest = min(closest or compared, key=lambda row: row.nbytes)
    return (
        f"{who}, {cheapest.label} moves the fewest bytes: {size(cheapest.nbytes)} in {cheapest.rounds:.1f} rounds; "
        f"retraining moves {size(retrained.nbytes)}."
    )
