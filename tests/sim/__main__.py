"""python -m tests.sim --seeds 10000 [--start S] [--jobs 2] [--out FILE]     many histories, figures as JSON
python -m tests.sim --seed N [-v]                                          one history again, with all events"""

from __future__ import annotations

import argparse
import json
import logging
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from tests.sim.scenario import draw, restless
from tests.sim.world import Outcome, run

_BATCH = 50


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description=__doc__)
    parser.add_argument("--seed", type=int, help="replay one seed")
    parser.add_argument("-v", action="store_true", help="print the history of the seed")
    parser.add_argument("--seeds", type=int, default=1000, help="how many histories")
    parser.add_argument("--start", type=int, default=0, help="the first seed")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--out", type=Path, help="write the result there, too")
    options = parser.parse_args()
    if options.seed is not None:
        return _replay(options.seed, verbose=options.v)
    return _many(options.start, options.seeds, options.jobs, options.out)


def _replay(seed: int, *, verbose: bool) -> int:
    scenario = restless(seed) if seed % 4 == 3 else draw(seed)
    outcome = run(scenario, verbose=verbose)
    if verbose:
        print(scenario.config.plan, scenario.config.forgetting, dict(scenario.faults), sep="\n")
        print(*outcome.history, sep="\n")
    print(f"seed {seed}: {outcome.failure or 'holds'}; {outcome.steps} steps, history {outcome.digest[:16]}")
    return 1 if outcome.failure else 0


def _many(start: int, seeds: int, jobs: int, out: Path | None) -> int:
    began = time.monotonic()
    total: Counter[str] = Counter()
    tickets: Counter[str] = Counter()
    failures: list[dict[str, Any]] = []
    simulated = 0.0
    words = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    told = subprocess.run(words, capture_output=True, text=True, check=False, cwd=Path(__file__).parent)
    commit = told.stdout.strip() or "unknown"

    def keep() -> str:
        """The result so far as JSON. With --out it is written to disk, so that an interrupted run leaves its figures."""
        seconds = time.monotonic() - began
        result = {
            "commit": commit,
            "first_seed": start,
            **total,
            "tickets": dict(tickets),
            "simulated_seconds": round(simulated),
            "real_seconds": round(seconds, 1),
            "simulated_to_real": round(simulated / seconds),
            "jobs": jobs,
            "failures": failures,
        }
        text = json.dumps(result, indent=1)
        if out is not None:
            out.parent.mkdir(parents=True, exist_ok=True)
            out.write_text(text + "\n")
        return text

    for outcome in _outcomes(start, seeds, jobs):
        total.update(histories=1, steps=outcome.steps, transactions=outcome.transactions, crashes=outcome.crashes)
        total.update(commits=len(outcome.commits))
        tickets.update(outcome.tickets)
        simulated += outcome.simulated
        if outcome.failure:
            failures.append({"seed": outcome.seed, "failure": outcome.failure})
            print(f"\nseed {outcome.seed}: {outcome.failure}", file=sys.stderr)
        if total["histories"] % _BATCH == 0:
            print(f"\r{total['histories']} of {seeds} histories, {len(failures)} failed", end="", file=sys.stderr)
            keep()
    print(file=sys.stderr)
    print(keep())
    return 1 if failures else 0


def _outcomes(start: int, seeds: int, jobs: int) -> Iterator[Outcome]:
    if jobs == 1:
        yield from map(_one, range(start, start + seeds))
        return
    with ProcessPoolExecutor(jobs) as pool:
        yield from pool.map(_one, range(start, start + seeds), chunksize=_BATCH)


def _one(seed: int) -> Outcome:
    # Simulated faults cause thousands of log lines.
    logging.disable(logging.CRITICAL)
    # Every fourth seed combines faults that are rare together.
    return run(restless(seed) if seed % 4 == 3 else draw(seed))


if __name__ == "__main__":
    sys.exit(main())
