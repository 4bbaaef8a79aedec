"""The verdict on a request: the model before against the model in use now, both against unseen data.

Three comparisons tell whether one model treats the forgotten data like unseen data: the ranks of all confidences, and the
two attacks. The null hypothesis of each is that forgotten and unseen samples are alike. The ranks are tested at 97.5 %, each
attack at 98.75 %: a model that never saw the data is called "still known" in at most about 5 of 100 cases.

"Forgotten" needs more than a test that finds nothing. The interval of the ranks at 90 % must lie within TOLERATED of unseen
data, so a model that is further away is called "forgotten" in at most 5 of 100 cases. The model before must have known the
data, and the change towards unseen data must be measurable: a request that changed nothing is called "forgotten" in at most 5
of 100 cases, and never if the figures before and after are equal.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from puf_common.receipts.evidence import FEWEST, MARGIN, Z90, Z95, Z975, Z9875, Attack, Finding, Verdict, worst
from puf_common.receipts.gap import Gap
from puf_common.receipts.ranks import UNSEEN, RankComparison, change

# "Forgotten" excludes that the ranks are further than this from unseen data. 60 forgotten and 100 unseen samples suffice.
TOLERATED = 0.15
# In place of a verdict, where there is none.
NOT_MEASURED = "not measured"
Z_RANKS, Z_ATTACK, Z_LIKE, Z_CHANGE, Z_GAP = Z975, Z9875, Z90, Z90, Z95


class Source(StrEnum):
    """Where unseen samples come from."""

    OWN = "the client's own hold-out"
    POOL = "the other clients' hold-outs, matched by label"


class Measured(Protocol):
    """What the target measured of one model."""

    @property
    def own(self) -> RankComparison | None: ...
    @property
    def pool(self) -> RankComparison | None: ...
    @property
    def yeom(self) -> Attack | None: ...
    @property
    def song(self) -> Attack | None: ...
    @property
    def gap(self) -> Gap | None: ...


@dataclass(frozen=True, slots=True)
class Judgement:
    """The verdict with the comparison behind it. None as verdict: there is no model before to compare with."""

    verdict: Verdict | None
    reason: str
    source: Source
    before: RankComparison | None
    after: RankComparison

    @property
    def change(self) -> tuple[float, float] | None:
        """The interval at 90 % of the AUC before minus the AUC after."""
        return None if self.before is None else change(self.before, self.after, Z_CHANGE)

    @property
    def figures(self) -> str:
        """Before, after and unseen in one sentence, and what this number of samples could show."""
        low, high = self.after.interval(Z_LIKE)
        before = "not measured" if self.before is None else f"{100 * self.before.auc:.0f} %"
        return (
            f"The model is more confident about a forgotten sample than about an unseen one in this share of pairs: {before} "
            f"before → {100 * self.after.auc:.0f} % after ({100 * low:.0f} to {100 * high:.0f} %) → "
            f"{100 * UNSEEN:.0f} % for unseen data. Compared: {self.after.forget_samples} forgotten with "
            f"{self.after.unseen_samples} unseen samples, {self.source}. With so many samples a distance of "
            f"{100 * self.after.detectable(Z_RANKS):.0f} points or more is found in 4 of 5 cases."
        )


def judge(before: Measured | None, after: Measured | None) -> Judgement | None:
    """The verdict on a request. None if the target did not compare the model after with unseen samples."""
    source = _source(before, after)
    if source is None or after is None:
        return None
    now = _ranks(after, source)
    assert now is not None
    then = _ranks(before, source) if before is not None else None
    gaps = (before.gap if before is not None else None, after.gap)
    verdict, reason = _decide(then, now, model_finding(now, (after.yeom, after.song)), gaps)
    return Judgement(verdict, reason, source, then, now)


def finding(measured: Measured) -> Finding | None:
    """Whether one model treats the forgotten data like unseen data; None without ranks."""
    source = _source(None, measured)
    ranks = _ranks(measured, source) if source is not None else None
    return None if ranks is None else model_finding(ranks, (measured.yeom, measured.song))


def model_finding(ranks: RankComparison, attacks: Iterable[Attack | None]) -> Finding:
    found = {attack.finding(Z_ATTACK) for attack in attacks if attack is not None}
    # An attack with few samples says nothing; the ranks decide then.
    return worst([ranks_finding(ranks), *(found & {Finding.NOT_LIKE_UNSEEN})]) or Finding.TOO_FEW


def ranks_finding(ranks: RankComparison) -> Finding:
    if min(ranks.forget_samples, ranks.unseen_samples) < FEWEST:
        return Finding.TOO_FEW
    if abs(ranks.distance) > MARGIN and ranks.excludes(UNSEEN, Z_RANKS):
        return Finding.NOT_LIKE_UNSEEN
    within = abs(ranks.distance) < TOLERATED and all(
        ranks.excludes(bound, Z_LIKE) for bound in (UNSEEN - TOLERATED, UNSEEN + TOLERATED)
    )
    return Finding.LIKE_UNSEEN if within else Finding.TOO_FEW


def _decide(
    before: RankComparison | None, after: RankComparison, now: Finding, gaps: tuple[Gap | None, Gap | None]
) -> tuple[Verdict | None, str]:
    if now is Finding.NOT_LIKE_UNSEEN:
        return Verdict.STILL_KNOWN, _how_it_shows(after)
    if now is Finding.TOO_FEW:
        return Verdict.TOO_FEW, "The samples are too few to tell whether the model still knows the forgotten data."
    if before is None:
        return None, "The model before was not compared with unseen data, so nothing shows a change."
    then = ranks_finding(before)
    if then is Finding.TOO_FEW:
        return Verdict.TOO_FEW, "The samples are too few to tell whether the model knew the forgotten data before."
    if then is Finding.LIKE_UNSEEN:
        return (
            Verdict.NOTHING_CHANGED,
            "The model treated the forgotten data like unseen data already before. There was nothing measurable to forget.",
        )
    if _moved(before, after) or _fell(before, *gaps):
        return (
            Verdict.FORGOTTEN,
            "Before, the model told the forgotten data from unseen data. Now it treats both alike.",
        )
    return Verdict.NOTHING_CHANGED, "The difference between the models before and after lies within chance."


def _moved(before: RankComparison, after: RankComparison) -> bool:
    """Whether the ranks moved towards unseen data by more than chance."""
    low, high = change(before, after, Z_CHANGE)
    return low > 0 if before.distance > 0 else high < 0


def _fell(ranks: RankComparison, before: Gap | None, after: Gap | None) -> bool:
    """Whether the gap moved towards unseen data by more than chance. Means of confidences show a change that ranks of few
    samples do not. The same model has the same gap, so that no change is never taken for one."""
    if before is None or after is None:
        return False
    moved = (before.value - after.value) * (1 if ranks.distance > 0 else -1)
    return moved > Z_GAP * math.hypot(before.error, after.error)


def _how_it_shows(after: RankComparison) -> str:
    if ranks_finding(after) is not Finding.NOT_LIKE_UNSEEN:
        return "A membership attack still tells the forgotten data from unseen data."
    if after.distance > 0:
        return "The model still treats the forgotten data more like its training data than like unseen data."
    return "The model does worse on the forgotten data than on unseen data: the forgetting itself shows."


def _source(before: Measured | None, after: Measured | None) -> Source | None:
    """Which unseen samples to use: by their number only, never by the result.

    The own hold-out, if it is large enough to show a distance of TOLERATED, because its samples are of the same kind as the
    forgotten ones. Otherwise the larger of the two. Models are compared with the same kind of samples where possible.
    """
    if after is None:
        return None
    found = {s: r for s in Source if (r := _ranks(after, s)) is not None}
    if before is not None:
        found = {s: r for s, r in found.items() if _ranks(before, s) is not None} or found
    reach = {source: ranks.detectable(Z_RANKS) for source, ranks in found.items()}
    if reach.get(Source.OWN, 1.0) <= TOLERATED:
        return Source.OWN
    return min(reach, key=lambda source: reach[source], default=None)


def _ranks(measured: Measured, source: Source) -> RankComparison | None:
    return measured.own if source is Source.OWN else measured.pool
