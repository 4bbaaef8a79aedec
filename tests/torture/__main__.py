"""`make torture`: kills at every failpoint (first, second and, if predictable, last hit) and at random moments.

It also sends a large model over a connection that breaks, and runs thousands of simulated histories. It writes
runs/torture/.
"""

from __future__ import annotations

import argparse
import json
import logging
import shutil
import subprocess
import sys
import time
import traceback
from collections import Counter
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import asdict
from pathlib import Path
from random import Random
from typing import Any

from tests.faults import LARGE, large_line
from tests.torture.checks import Outcome, judge
from tests.torture.harness import Failed, Federation
from tests.torture.kills import Kills, scenarios, thorough

from puf_common.errors import PufError
from puf_common.tensors.manifest import MODEL
from puf_server.failpoints import POINTS

_SECONDS = 1500.0
# Histories in which the simulator must find a fault that was put into the code.
_MUTANT_HISTORIES = 300
_KILLS_PER_FEDERATION = 50
# How many of these fall, at most, into the time in which a client is being forgotten.
_RESERVE = 15
# The smallest number of kills of each kind that counts as a test.
_LEAST = {"server": 0.3, "client": 0.03, "target": 0.02, "unlearn command": 0.02}
_COUNTS = ("lost", "doubled", "half_applied", "retrained")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.torture", description=__doc__)
    parser.add_argument("--kills", type=int, default=200, help="SIGKILLs at random moments (default 200)")
    parser.add_argument("--seed", type=int, default=1, help="the moments and the victims derive from it")
    parser.add_argument("--jobs", type=int, default=2, help="federations at a time (default 2)")
    parser.add_argument("--histories", type=int, default=20_000, help="simulated histories (default 20000)")
    parser.add_argument("--strikes", type=int, default=120, help="faults on the line of a large model (default 120)")
    parser.add_argument("--out", type=Path, default=Path("runs/torture"), help="where logs and result.json go")
    arguments = parser.parse_args()
    shutil.rmtree(arguments.out, ignore_errors=True)
    arguments.out.mkdir(parents=True)
    started = time.monotonic()
    result: dict[str, Any] = {"passed": False, "commit": _commit(), "seed": arguments.seed, "federations": []}
    try:
        _simulate(arguments.out, arguments.histories, arguments.jobs, result)
        _strike(arguments.out, arguments.strikes, arguments.seed, result)
        _torture(arguments.out, arguments.kills, arguments.seed, arguments.jobs, result, started)
        result["passed"] = True
    except Exception as failure:
        result["failure"] = str(failure) if isinstance(failure, Failed | PufError) else traceback.format_exc()
        print(f"\nFAILED (commit {result['commit']}, seed {arguments.seed}): {result['failure']}", file=sys.stderr)
    # Counted over all finished federations, also if another one failed.
    result |= {kind: sum(f[kind] for f in result["federations"]) for kind in _COUNTS}
    result["seconds"] = round(time.monotonic() - started, 1)
    (arguments.out / "result.json").write_text(json.dumps(result, indent=1) + "\n")
    print(f"{arguments.out / 'result.json'}: {'passed' if result['passed'] else 'failed'} in {result['seconds']:.0f} s")
    return 0 if result["passed"] else 1


def _commit() -> str:
    """The commit under test."""
    words = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=Path(__file__).parent)
    return done.stdout.strip() or "unknown"


def _simulate(out: Path, histories: int, jobs: int, result: dict[str, Any]) -> None:
    if not histories:
        return
    file = out / "sim.json"
    words = [sys.executable, "-m", "tests.sim", "--seeds", str(histories), "--jobs", str(jobs), "--out", str(file)]
    code = subprocess.run(words, stdout=subprocess.DEVNULL, check=False).returncode
    told = json.loads(file.read_text()) if file.exists() else {}
    result["simulated"] = told
    if code or told.get("histories") != histories or told["failures"]:
        raise Failed(f"simulated histories fail; see {file}")
    words = [sys.executable, "-m", "tests.sim", "--mutants", str(_MUTANT_HISTORIES)]
    with (out / "mutants.txt").open("w") as found:
        if subprocess.run(words, stdout=found, check=False).returncode:
            raise Failed(f"the simulator misses a fault that was put into the code; see {found.name}")


def _strike(out: Path, strikes: int, seed: int, result: dict[str, Any]) -> None:
    if not strikes:
        return
    # Servers and clients log a warning for every fault.
    logging.disable(logging.CRITICAL)
    with large_line(out / "line") as line:
        line.strike_at_random(Random(seed), -(-strikes // 2))
        lost = line.lost()
        told = {"model_bytes": LARGE.nbytes(MODEL), "rounds": line.rounds, "strikes": line.proxy.struck}
        result["faults"] = {**told, "resumed": line.transport.resumed, "lost": lost}
    logging.disable(logging.NOTSET)
    shutil.rmtree(out / "line")
    print(
        f"{line.proxy.struck} faults on the line of a large model, {line.transport.resumed} uploads went on", flush=True
    )
    if lost:
        raise Failed(f"the model has {lost:g} rounds too few or too many after {line.proxy.struck} faults")


def _torture(out: Path, moments: int, seed: int, jobs: int, result: dict[str, Any], started: float) -> None:
    plan = thorough()

    def run(name: str, kills: Kills) -> Outcome:
        def say(told: str) -> None:
            print(f"{time.monotonic() - started:6.0f} s  {name}: {told}", flush=True)

        say("begins")
        Federation(out / name, kills, plan, say).run(_SECONDS)
        outcome = judge(out / name)
        reference = result.setdefault("digests", list(outcome.digests))
        facts = asdict(outcome)
        same = list(facts.pop("digests")) == reference
        result["federations"].append({"name": name, "kills": dict(kills.done), **facts, "weights_identical": same})
        if not same:
            raise Failed(f"{name}: the weights differ from those of the run that was never interrupted")
        if not outcome.canaries:
            raise Failed(
                f"{name}: no update of the forgotten client was seen, so that the search for it proves nothing"
            )
        if outcome.wrong:
            raise Failed(f"{name}: {'; '.join(outcome.wrong[:5])}")
        say(
            f"{sum(kills.done.values())} kills, {outcome.acknowledged} updates acknowledged, none lost, weights identical"
        )
        return outcome

    undisturbed = run("uninterrupted", Kills())
    if undisturbed.recovery_rounds < plan.forgetting.max_recovery_rounds:
        raise Failed(
            f"recovery took {undisturbed.recovery_rounds} rounds: too few to be killed in; forget more strongly"
        )
    armed = Kills(armed=scenarios())
    drawn: list[Kills] = []

    def left() -> int:
        return moments - sum(sum(k.done.values()) if k in over else k.moments for k in drawn)

    def at_random() -> None:
        share = min(left(), _KILLS_PER_FEDERATION)
        kills = Kills(moments=share, seed=seed * 1000 + len(drawn) + 1, reserve=min(_RESERVE, share // 2))
        drawn.append(kills)
        futures[pool.submit(run, f"random-{len(drawn)}", kills)] = kills

    over: list[Kills] = []
    futures: dict[Future[Outcome], Kills] = {}
    with ThreadPoolExecutor(jobs) as pool:
        futures[pool.submit(run, "failpoints", armed)] = armed
        while left() > 0:
            at_random()
        while futures:
            done, _ = wait(futures, return_when=FIRST_COMPLETED)
            for future in done:
                over.append(futures.pop(future))
                if future.exception() is not None:
                    pool.shutdown(wait=False, cancel_futures=True)
                future.result()
            # A federation that ended before all of its kills leaves them to another.
            if left() > 0:
                at_random()
    result["failpoints"] = {"known": len(POINTS), "reached": len(armed.done), "kills": sum(armed.done.values())}
    total: Counter[str] = Counter()
    for kills in drawn:
        total += kills.done
    result["random"] = {"kills": sum(total.values()), **total}
    result["weights_identical"] = all(f["weights_identical"] for f in result["federations"])
    few = [who for who, share in _LEAST.items() if total[who] < share * moments]
    if few:
        raise Failed(f"too few kills of {', '.join(few)} to show anything: {dict(total)}; try another --seed")


if __name__ == "__main__":
    sys.exit(main())
