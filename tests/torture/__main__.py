"""`make torture`: kills and pauses of real processes, at every failpoint and at random moments.

Every federation ends with the weights of an undisturbed one, loses nothing, and leaves no byte that the forgotten client
sent. The run goes on where it stopped with --resume. It also sends a large model over a connection that breaks, runs three
servers over a database that restarts, and runs simulated histories. Results and logs are in runs/torture/.
"""

from __future__ import annotations

import argparse
import json
import logging
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from random import Random
from typing import Any

from tests.faults import LARGE, large_line
from tests.results import OUT, Results
from tests.torture.checks import judge
from tests.torture.harness import Failed, Federation
from tests.torture.kills import KINDS, TARGET, Kills, scenarios
from tests.torture.several import several_servers

from puf_common.errors import PufError
from puf_common.tensors.manifest import MODEL
from puf_lab.federations.in_process import InProcessFederation
from puf_server.failpoints import POINTS

_SECONDS = 1800.0
_KILLS_PER_FEDERATION = 50
# How many of these happen, at most, in the time in which a client is being forgotten.
_RESERVE = 20
_PAUSES = 0.15
_COUNTS = ("lost", "doubled", "half_applied", "retrained", "canaries", "acknowledged")
# The failpoints that a request with adaptive strength reaches.
_ADAPTIVE = ("ticket.", "evaluation.", "measurement.", "commit.unlearn.", "commit.recover.", "completion.")
# Histories in which the simulator must find a fault that was put into the code.
_MUTANT_HISTORIES = 300


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.torture", description=__doc__)
    parser.add_argument("--kills", type=int, default=1000, help="SIGKILLs in all (default 1000)")
    parser.add_argument("--federations", type=int, default=1000, help="federations in this call (default: no limit)")
    parser.add_argument("--resume", action="store_true", help="continue the last run")
    parser.add_argument("--seed", type=int, default=1, help="the moments and the victims derive from it")
    parser.add_argument("--jobs", type=int, default=2, help="simulated histories at a time (default 2)")
    parser.add_argument(
        "--histories",
        type=int,
        default=20_000,
        help="histories; half as many of three servers (default 20000)",
    )
    parser.add_argument("--strikes", type=int, default=120, help="faults on the line of a large model (default 120)")
    parser.add_argument("--several", type=int, default=40, help="rounds of three servers in PostgreSQL (default 40)")
    parser.add_argument("--out", type=Path, default=OUT, help="where logs and result.json go")
    arguments = parser.parse_args()
    kills = Results(arguments.out / "result.json", "kills", resume=arguments.resume)
    line = Results(arguments.out / "result.json", "line", resume=arguments.resume)
    simulated = Results(arguments.out / "result.json", "simulated", resume=arguments.resume)
    if arguments.histories and not simulated.parts:
        _simulate(arguments.out, arguments.histories, arguments.jobs, simulated)
    if arguments.strikes and not line.parts:
        _strike(arguments.out, arguments.strikes, arguments.seed, line)
    several = Results(arguments.out / "result.json", "several", resume=arguments.resume)
    if arguments.several and not several.parts:
        several_servers(arguments.out, arguments.several, arguments.seed, several)
    _torture(arguments.out, kills, arguments.kills, arguments.federations, arguments.seed)
    parts = [*kills.parts, *line.parts, *several.parts, *simulated.parts]
    failed = [part["name"] for part in parts if part["failure"]]
    print(f"{arguments.out / 'result.json'}: {f'failed: {failed}' if failed else 'passed'}")
    return 1 if failed else 0


def _simulate(out: Path, histories: int, jobs: int, results: Results) -> None:
    """Histories of one server, half as many of three servers, and mutants."""
    for servers, wanted in ((1, histories), (3, histories // 2)):
        file = out / f"sim-{servers}.json"
        words = [sys.executable, "-m", "tests.sim", "--servers", str(servers), "--seeds", str(wanted)]
        words += ["--jobs", str(jobs), "--out", str(file)]
        code = subprocess.run(words, stdout=subprocess.DEVNULL, check=False).returncode
        written = json.loads(file.read_text()) if file.exists() else {}
        wrong = code or written.get("histories") != wanted or written["failures"]
        failure = f"simulated histories fail; see {file}" if wrong else ""
        name = "histories" if servers == 1 else f"histories of {servers} servers"
        results.add(name, counts={"histories": written.get("histories", 0)}, failure=failure)
    words = [sys.executable, "-m", "tests.sim", "--mutants", str(_MUTANT_HISTORIES)]
    with (out / "mutants.txt").open("w") as found:
        missed = subprocess.run(words, stdout=found, check=False).returncode
    failure = f"the simulator misses a fault that was put into the code; see {found.name}" if missed else ""
    results.add("mutants", counts={}, failure=failure)


def _strike(out: Path, strikes: int, seed: int, results: Results) -> None:
    # Servers and clients log a warning for every fault.
    logging.disable(logging.CRITICAL)
    with large_line(out / "line") as line:
        line.strike_at_random(Random(seed), -(-strikes // 2))
        lost = line.lost()
        counts = {"rounds": line.rounds, "strikes": line.proxy.struck, "resumed": line.transport.resumed}
    logging.disable(logging.NOTSET)
    shutil.rmtree(out / "line")
    print(f"{counts['strikes']} faults on the line of a large model, {counts['resumed']} uploads went on", flush=True)
    failure = f"the model has {lost:g} rounds too few or too many" if lost else ""
    results.add("large model", counts=counts, model_bytes=LARGE.nbytes(MODEL), failure=failure)


def _torture(out: Path, results: Results, wanted: int, most: int, seed: int) -> None:
    """Runs federations until the kills of all parts, also of earlier calls, are `wanted`."""
    started = time.monotonic()
    references: dict[str, list[str]] = {}
    for name, kind, kills in _federations(results, wanted, most, seed):

        def say(text: str, name: str = name) -> None:
            print(f"{time.monotonic() - started:6.0f} s  {name}: {text}", flush=True)

        if kind not in references:
            references[kind] = _undisturbed(kind)
        facts: dict[str, Any] = {"kind": kind, "counts": {}}
        shutil.rmtree(out / name, ignore_errors=True)
        failure = ""
        try:
            Federation(out / name, kills, KINDS[kind](), say).run(_SECONDS)
            facts |= _judged(out / name, references[kind])
            failure = facts.pop("failure")
        except Exception as error:
            failure = str(error) if isinstance(error, Failed | PufError) else traceback.format_exc()
        facts["counts"] |= {"SIGKILL": kills.killed, "SIGSTOP": kills.done.total() - kills.killed}
        facts["counts"]["SIGKILL during an upload"] = kills.in_upload
        facts["counts"] |= _by_victim(kills)
        results.add(name, **facts, failure=failure)
        say(failure or f"{facts['counts']}, nothing lost, weights identical")
        if not failure:
            shutil.rmtree(out / name)


def _federations(results: Results, wanted: int, most: int, seed: int) -> Iterator[tuple[str, str, Kills]]:
    """The next federations: failpoints first, then kills at random moments in each kind in turn."""
    for _ in range(most):
        done = {part["name"] for part in results.parts}
        killed = sum(part["counts"].get("SIGKILL", 0) for part in results.parts)
        if "failpoints" not in done:
            yield "failpoints", "fixed", Kills(armed=scenarios())
        elif "failpoints-adaptive" not in done:
            points = [name for name in POINTS if name.startswith(_ADAPTIVE)]
            yield "failpoints-adaptive", "adaptive", Kills(armed=scenarios(points))
        elif killed < wanted:
            number = (
                max((int(name.removeprefix("random-")) for name in done if name.startswith("random-")), default=0) + 1
            )
            share = min(wanted - killed, _KILLS_PER_FEDERATION)
            drawn = Kills(moments=share, seed=seed * 1000 + number, reserve=min(_RESERVE, share // 2), pauses=_PAUSES)
            yield f"random-{number}", list(KINDS)[(number - 1) % len(KINDS)], drawn
        else:
            return


def _undisturbed(kind: str) -> list[str]:
    """The digests of all models of a federation that is never interrupted."""
    plan = KINDS[kind]()
    fixed: dict[str, Any] = {"kappa": plan.forgetting.kappa} if plan.forgetting.strength == "fixed" else {}
    with tempfile.TemporaryDirectory() as scratch, InProcessFederation(plan, Path(scratch) / "local") as undisturbed:
        undisturbed.train()
        undisturbed.forget([TARGET], mode="regular", **fixed)
        return [m.digest for _, m in sorted(undisturbed.state.models.items())]


def _judged(directory: Path, reference: list[str]) -> dict[str, Any]:
    outcome = judge(directory)
    facts = asdict(outcome)
    same = list(facts.pop("digests")) == reference
    wrong = list(outcome.wrong[:5])
    if not same:
        wrong.append("the weights differ from those of the run that was never interrupted")
    if not outcome.canaries:
        wrong.append("no update of the forgotten client was seen, so that the search for it proves nothing")
    counts = {name: facts.pop(name) for name in _COUNTS}
    return {"counts": counts, "weights_identical": same, "failure": "; ".join(wrong)} | {
        name: facts[name] for name in ("rounds", "recovery_rounds")
    }


def _by_victim(kills: Kills) -> dict[str, int]:
    found: Counter[str] = Counter()
    for who, count in kills.done.items():
        found["server at a failpoint" if who in POINTS else who] += count
    return dict(found)


if __name__ == "__main__":
    sys.exit(main())
