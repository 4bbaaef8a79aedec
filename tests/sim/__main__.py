"""python -m tests.sim --seeds 10000 [--start S] [--jobs 2] [--out FILE [--resume]]     many histories, figures as JSON
python -m tests.sim --seed N [-v]                                          one history again, with all events
python -m tests.sim --servers 3 --seeds 10000                              several servers over one store
python -m tests.sim --mutants 300                                          faults in the code that must be found"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from tests.sim.mutants import ALL, caught
from tests.sim.run import run
from tests.sim.scenario import Scenario, draw, restless, several
from tests.sim.world import Outcome

_BATCH = 20
_COUNTED = ("histories", "steps", "transactions", "crashes", "commits")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description=__doc__)
    parser.add_argument("--seed", type=int, help="replay one seed")
    parser.add_argument("-v", action="store_true", help="print the history of the seed")
    parser.add_argument("--seeds", type=int, default=1000, help="how many histories")
    parser.add_argument("--start", type=int, default=0, help="the first seed")
    parser.add_argument("--servers", type=int, default=1, help="servers over one store; with their own faults")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--out", type=Path, help="write the result there, too")
    parser.add_argument(
        "--mutants", type=int, metavar="N", help="put each known fault into the code: N histories find it"
    )
    parser.add_argument("--resume", action="store_true", help="continue the run whose result --out has")
    options = parser.parse_args()
    if options.mutants:
        return _mutants(options.mutants)
    if options.seed is not None:
        return _replay(options.seed, options.servers, verbose=options.v)
    figures = _Figures(options.start, options.jobs, options.out, options.servers)
    if options.resume:
        figures.resume()
    return _many(options.start, options.seeds, options.jobs, figures, options.servers)


def _replay(seed: int, servers: int, *, verbose: bool) -> int:
    scenario = _scenario(seed, servers)
    outcome = run(scenario, verbose=verbose)
    if verbose:
        print(scenario.config.plan, scenario.config.forgetting, dict(scenario.faults), sep="\n")
        print(*outcome.history, sep="\n")
    print(f"seed {seed}: {outcome.failure or 'holds'}; {outcome.steps} steps, history {outcome.digest[:16]}")
    return 1 if outcome.failure else 0


def _mutants(histories: int) -> int:
    """Prints for each fault the history that finds it. Returns 1 if a fault is not found."""
    missed = 0
    for mutate in ALL:
        found = caught(mutate, histories)
        missed += found is None
        told = f"found by history {found[0]}: {found[1].failure}" if found else f"NOT FOUND in {histories} histories"
        print(f"{mutate.__name__}: {told}", flush=True)
    return 1 if missed else 0


class _Figures:
    """Figures of many histories as JSON. They are written to a file now and then, from which a later run continues."""

    def __init__(self, start: int, jobs: int, out: Path | None, servers: int) -> None:
        words = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
        told = subprocess.run(words, capture_output=True, text=True, check=False, cwd=Path(__file__).parent)
        self._run = {"commit": told.stdout.strip() or "unknown", "first_seed": start, "servers": servers}
        self._jobs = jobs
        self._out = out
        self._began = time.monotonic()
        self.total: Counter[str] = Counter(dict.fromkeys(_COUNTED, 0))
        self.failures: list[dict[str, Any]] = []
        self._tickets: Counter[str] = Counter()
        self._faults: Counter[str] = Counter()
        self._seconds = self._simulated = 0.0

    def resume(self) -> None:
        """Continues the run whose figures the file has, if it is of the same commit and the same first seed."""
        known = json.loads(self._out.read_text()) if self._out is not None and self._out.exists() else {}
        if {name: known.get(name) for name in self._run} == self._run:
            self.total = Counter({name: known[name] for name in _COUNTED})
            self.failures, self._tickets = known["failures"], Counter(known["tickets"])
            self._faults = Counter(known["faults"])
            self._seconds, self._simulated = known["real_seconds"], known["simulated_seconds"]

    def add(self, outcome: Outcome) -> None:
        self.total.update(histories=1, steps=outcome.steps, transactions=outcome.transactions, crashes=outcome.crashes)
        self.total.update(commits=len(outcome.commits))
        self._tickets.update(outcome.tickets)
        self._faults.update(outcome.faults)
        self._simulated += outcome.simulated
        if outcome.failure:
            self.failures.append({"seed": outcome.seed, "failure": outcome.failure})
            print(f"\nseed {outcome.seed}: {outcome.failure}", file=sys.stderr)

    def keep(self) -> str:
        seconds = self._seconds + time.monotonic() - self._began
        result = {
            **self._run,
            **self.total,
            "tickets": dict(self._tickets),
            "faults": dict(sorted(self._faults.items())),
            "simulated_seconds": round(self._simulated),
            "real_seconds": round(seconds, 1),
            "simulated_to_real": round(self._simulated / seconds),
            "jobs": self._jobs,
            "failures": self.failures,
        }
        text = json.dumps(result, indent=1)
        if self._out is not None:
            self._out.parent.mkdir(parents=True, exist_ok=True)
            self._out.write_text(text + "\n")
        return text


def _many(start: int, seeds: int, jobs: int, figures: _Figures, servers: int) -> int:
    done = figures.total["histories"]
    for outcome in _outcomes(start + done, seeds - done, jobs, servers):
        figures.add(outcome)
        if figures.total["histories"] % _BATCH == 0:
            shown = f"{figures.total['histories']} of {seeds} histories, {len(figures.failures)} failed"
            print(f"\r{shown}", end="", file=sys.stderr)
            figures.keep()
    print(file=sys.stderr)
    print(figures.keep())
    return 1 if figures.failures else 0


def _outcomes(start: int, seeds: int, jobs: int, servers: int) -> Iterator[Outcome]:
    one = partial(_one, servers)
    if jobs == 1:
        yield from map(one, range(start, start + seeds))
        return
    with ProcessPoolExecutor(jobs) as pool:
        yield from pool.map(one, range(start, start + seeds), chunksize=_BATCH)


def _one(servers: int, seed: int) -> Outcome:
    return run(_scenario(seed, servers))


def _scenario(seed: int, servers: int) -> Scenario:
    # Every fourth seed combines faults that are rare together.
    drawn = restless(seed) if seed % 4 == 3 else draw(seed)
    return drawn if servers == 1 else several(drawn, servers)


if __name__ == "__main__":
    sys.exit(main())
