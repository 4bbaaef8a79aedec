"""Cost of forgetting: a PUF-Regular round compared with an ordinary one, and the bytes of a PUF-Special round."""

from __future__ import annotations

import statistics
from pathlib import Path

from puf_lab.bench.federation import PARAMETERS, Federation
from puf_lab.bench.report import Report, spread

_CLIENTS = 10
# No recovery: only the unlearning round itself is measured.
_FLAGS = ("--forgetting-max-recovery-rounds", "0", "--forgetting-measure-seconds", "0")


def forgetting(report: Report, scratch: Path, repeats: int) -> None:
    """Each repeat has ordinary rounds of some clients, then the round in which one of these clients is forgotten."""
    ratios, ordinary, unlearning = [], [], []
    with Federation(scratch / "regular", _CLIENTS, PARAMETERS, _FLAGS) as federation:
        federation.round()
        for turn in range(repeats):
            ordinary.append(statistics.median(federation.round() for _ in range(3)))
            forgotten = federation.forget(f"client-{turn}")
            unlearning.append(forgotten.committed_at - forgotten.opened_at)
            ratios.append(unlearning[-1] / ordinary[-1])
            report.console.print(
                f"  turn {turn + 1}: ordinary {ordinary[-1]:.2f} s, PUF-Regular {unlearning[-1]:.2f} s"
            )
    note = f"ratios {spread(ratios)} with the same participants"
    report.at_most("regular_round_to_fedavg_round", statistics.median(ratios), 1.05, note=note)
    report.details["forgetting_seconds"] = {"ordinary": ordinary, "regular": unlearning}
    flags = (*_FLAGS, "--forgetting-mode", "special", "--plan-min-clients", "1")
    with Federation(scratch / "special", 3, PARAMETERS, flags) as federation:
        federation.round()
        forgotten = federation.forget("client-0")
    moved = forgotten.bytes_down + forgotten.bytes_up
    report.at_most(
        "special_round_bytes_to_2PB", moved / (2 * 4 * PARAMETERS), 1.0, note=f"{moved:,} bytes for one target"
    )
