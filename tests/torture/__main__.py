"""`make torture`: every failpoint at its first and second hit, then SIGKILL at random moments; writes runs/torture/."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
from collections import Counter
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.torture.checks import judge
from tests.torture.harness import Failed, Federation, Kills, scenarios, setting

from puf_common.errors import PufError
from puf_server.failpoints import POINTS

_SECONDS = 1500.0
_KILLS_PER_FEDERATION = 50


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.torture", description=__doc__)
    parser.add_argument("--kills", type=int, default=200, help="SIGKILLs at random moments (default 200)")
    parser.add_argument("--seed", type=int, default=1, help="the moments and the victims derive from it")
    parser.add_argument("--jobs", type=int, default=2, help="federations at a time (default 2)")
    parser.add_argument("--out", type=Path, default=Path("runs/torture"), help="where logs and result.json go")
    arguments = parser.parse_args()
    shutil.rmtree(arguments.out, ignore_errors=True)
    arguments.out.mkdir(parents=True)
    started = time.monotonic()
    result: dict[str, Any] = {"passed": False, "seed": arguments.seed, "federations": []}
    try:
        _torture(arguments.out, arguments.kills, arguments.seed, arguments.jobs, result, started)
        result["passed"] = True
    except (Failed, PufError) as failure:
        result["failure"] = str(failure)
        print(f"\nFAILED (seed {arguments.seed}): {failure}", file=sys.stderr)
    result["seconds"] = round(time.monotonic() - started, 1)
    (arguments.out / "result.json").write_text(json.dumps(result, indent=1) + "\n")
    print(f"{arguments.out / 'result.json'}: {'passed' if result['passed'] else 'failed'} in {result['seconds']:.0f} s")
    return 0 if result["passed"] else 1


def _torture(out: Path, moments: int, seed: int, jobs: int, result: dict[str, Any], started: float) -> None:
    # Second hits need rounds: a failpoint on the way of another one starts to count anew.
    plan = setting(14)

    def run(name: str, kills: Kills) -> None:
        def say(told: str) -> None:
            print(f"{time.monotonic() - started:6.0f} s  {name}: {told}", flush=True)

        say("begins")
        Federation(out / name, kills, plan, say).run(_SECONDS)
        outcome = judge(out / name)
        reference = result.setdefault("digests", list(outcome.digests))
        if list(outcome.digests) != reference:
            raise Failed(f"{name}: the weights differ from those of the run that was never interrupted")
        facts = asdict(outcome)
        del facts["digests"]
        result["federations"].append({"name": name, "kills": dict(kills.done), **facts, "weights_identical": True})
        say(
            f"{sum(kills.done.values())} kills, {outcome.acknowledged} updates acknowledged, none lost, weights identical"
        )

    run("uninterrupted", Kills())
    armed = Kills(armed=scenarios())
    drawn: list[Kills] = []

    def left() -> int:
        return moments - sum(sum(k.done.values()) if k in over else k.moments for k in drawn)

    def at_random() -> None:
        kills = Kills(moments=min(left(), _KILLS_PER_FEDERATION), seed=seed * 1000 + len(drawn) + 1)
        drawn.append(kills)
        futures[pool.submit(run, f"random-{len(drawn)}", kills)] = kills

    over: list[Kills] = []
    futures: dict[Future[None], Kills] = {}
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
            # One that had its end before all of its kills leaves them to another.
            if left() > 0:
                at_random()
    result["failpoints"] = {"known": len(POINTS), "reached": len(armed.done), "kills": sum(armed.done.values())}
    total: Counter[str] = Counter()
    for kills in drawn:
        total += kills.done
    result["random"] = {"kills": sum(total.values()), **total}
    result |= {"lost": 0, "doubled": 0, "half_applied": 0, "weights_identical": True}


if __name__ == "__main__":
    sys.exit(main())
