"""`puf-lab quality`: does forgetting work, on the demo's setting, over several targets?

Every target leaves the same original federation, once in each mode; beside it the federation retrained without the
target and the one that did nothing. A mean over targets, because a single one proves nothing.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress, TimeRemainingColumn
from rich.table import Table

from puf_common.config.exit_codes import Exit
from puf_common.logging import configure
from puf_lab.demo.outcome import Measured
from puf_lab.evaluation.evaluator import Evaluator
from puf_lab.evaluation.metrics import delta_to_retrain
from puf_lab.experiments.setting import DEMO, Setting
from puf_lab.federations.in_process import LocalFederation
from puf_server.core.state.tickets import Ticket

__all__ = ["GOALS", "run_quality"]

METHODS = ("original", "retrained", "natural", "special", "regular")


@dataclass(frozen=True)
class Goal:
    """One thing that must hold, as a number and a bound."""

    name: str
    value: float
    bound: float
    at_least: bool

    @property
    def met(self) -> bool:
        return self.value >= self.bound if self.at_least else self.value <= self.bound


GOALS = "gap >= 12; natural delta >= 12; each PUF delta <= 8 and <= half of natural's; recovery <= 10 rounds"


def run_quality(out: Path, targets: list[int], setting: Setting = DEMO) -> int:
    configure(level="error", log_format="auto")
    console = Console(highlight=False)
    started = time.monotonic()
    # Nobody follows a ticket here, so completion need not wait for the leaver's own measurements.
    setting = replace(setting, forgetting=setting.forgetting.model_copy(update={"measure_seconds": 0.0}))
    out.mkdir(parents=True, exist_ok=True)
    rows: dict[str, list[Measured]] = {method: [] for method in METHODS}
    rounds: dict[str, list[int]] = {"special": [], "regular": []}
    recovered: dict[str, list[bool]] = {"special": [], "regular": []}
    with (
        tempfile.TemporaryDirectory() as scratch,
        Progress(
            *Progress.get_default_columns()[:-1],
            TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
        ) as progress,
    ):
        bar = progress.add_task("training the original", total=1 + 4 * len(targets))
        evaluator = Evaluator(setting)
        with LocalFederation(setting, Path(scratch) / "original") as original:
            original.train()
            whole = original.payload()
        progress.advance(bar)
        for target in targets:
            rows["original"].append(evaluator.measure(whole, [target]))
            for mode in ("special", "regular"):
                progress.update(bar, description=f"client-{target}: PUF-{mode}")
                ticket, payload = _forget(original, Path(scratch) / f"{mode}-{target}", target, mode)
                rows[mode].append(evaluator.measure(payload, [target]))
                rounds[mode].append(ticket.applied.recovery_rounds if ticket.applied else 0)
                recovered[mode].append(bool(ticket.outcome and ticket.outcome.recovered))
                progress.advance(bar)
            progress.update(bar, description=f"client-{target}: no unlearning")
            with original.copy(Path(scratch) / f"natural-{target}", without=[target]) as natural:
                natural.extend(1 + rounds["regular"][-1])
                natural.train()
                rows["natural"].append(evaluator.measure(natural.payload(), [target]))
            progress.advance(bar)
            progress.update(bar, description=f"client-{target}: retraining")
            with LocalFederation(setting, Path(scratch) / f"retrained-{target}", without=[target]) as retrained:
                retrained.train()
                rows["retrained"].append(evaluator.measure(retrained.payload(), [target]))
            progress.advance(bar)
            for folder in Path(scratch).glob(f"*-{target}"):
                shutil.rmtree(folder)
    goals = _goals(rows, rounds)
    result = {
        "targets": targets,
        "setting": {
            "data": setting.data,
            "options": setting.data_options,
            "clients": setting.clients,
            "rounds": setting.rounds,
        },
        "rows": {method: [asdict(m) for m in measured] for method, measured in rows.items()},
        "recovery_rounds": rounds,
        "recovered": recovered,
        "goals": [{**asdict(goal), "met": goal.met} for goal in goals],
        "seconds": round(time.monotonic() - started, 1),
    }
    (out / "result.json").write_text(json.dumps(result, indent=1) + "\n")
    table = _table(rows, rounds, recovered)
    console.print(table)
    (out / "table.md").write_text(_markdown(rows, rounds, recovered) + "\n")
    for goal in goals:
        sign = "≥" if goal.at_least else "≤"
        console.print(f"{'met ' if goal.met else 'MISSED'}  {goal.name}: {goal.value:.1f} ({sign} {goal.bound:.1f})")
    console.print(f"figures: {out / 'result.json'} ({result['seconds']} s)")
    return Exit.OK if all(goal.met for goal in goals) else Exit.FAILURE


def _forget(original: LocalFederation, folder: Path, target: int, mode: str) -> tuple[Ticket, bytearray]:
    with original.copy(folder) as federation:
        (ticket,) = federation.forget([target], mode=mode)
        return ticket, federation.payload()


def _goals(rows: dict[str, list[Measured]], rounds: dict[str, list[int]]) -> list[Goal]:
    delta = {method: _delta(rows, method, "forget").mean for method in ("original", "natural", "special", "regular")}
    goals = [
        Goal("gap between original and retrained on the forget data", delta["original"], 12.0, True),
        Goal("delta forget accuracy of no unlearning", delta["natural"], 12.0, True),
    ]
    for mode in ("special", "regular"):
        goals += [
            Goal(f"delta forget accuracy of PUF-{mode}", delta[mode], 8.0, False),
            Goal(
                f"the same as a share of no unlearning's, PUF-{mode}", 100 * delta[mode] / delta["natural"], 50.0, False
            ),
            Goal(f"mean recovery rounds of PUF-{mode}", sum(rounds[mode]) / len(rounds[mode]), 10.0, False),
        ]
    return goals


def _delta(rows: dict[str, list[Measured]], method: str, metric: str) -> Any:
    return delta_to_retrain([getattr(m, metric) for m in rows[method]], [getattr(m, metric) for m in rows["retrained"]])


_LABELS = {
    "original": "Original",
    "retrained": "Retrain",
    "natural": "Natural",
    "special": "PUF-Special",
    "regular": "PUF-Regular",
}
_HEAD = ("", "test", "forget", "Δ forget", "Δ MIA Song", "Δ MIA Yeom", "recovery rounds", "recovered")


def _cells(
    rows: dict[str, list[Measured]], rounds: dict[str, list[int]], recovered: dict[str, list[bool]]
) -> list[list[str]]:
    def mean(method: str, metric: str) -> str:
        values = [getattr(m, metric) for m in rows[method]]
        return f"{sum(values) / len(values):.1f}"

    def delta(method: str, metric: str) -> str:
        if method == "retrained":
            return "–"
        found = _delta(rows, method, metric)
        return f"{found.mean:.1f}" + (f" ± {found.sd:.1f}" if found.sd is not None else "")

    return [
        [
            _LABELS[method],
            mean(method, "test"),
            mean(method, "forget"),
            *(delta(method, metric) for metric in ("forget", "song", "yeom")),
            f"{sum(rounds[method]) / len(rounds[method]):.1f}" if method in rounds else "–",
            f"{sum(recovered[method])} of {len(recovered[method])}" if method in recovered else "–",
        ]
        for method in METHODS
    ]


def _table(rows: dict[str, list[Measured]], rounds: dict[str, list[int]], recovered: dict[str, list[bool]]) -> Table:
    table = Table(*_HEAD, title=f"mean over {len(rows['original'])} targets, ± sd")
    for cells in _cells(rows, rounds, recovered):
        table.add_row(*cells)
    return table


def _markdown(rows: dict[str, list[Measured]], rounds: dict[str, list[int]], recovered: dict[str, list[bool]]) -> str:
    lines = ["| " + " | ".join(_HEAD) + " |", "|---" * len(_HEAD) + "|"]
    return "\n".join(lines + ["| " + " | ".join(cells) + " |" for cells in _cells(rows, rounds, recovered)])
