"""`make soak`: a simulated day with 1,000 clients, and a real server process for several hundred rounds.

The simulated day has token rotation, certificate renewal, backups and restores: see `day.py`. For the server process,
clients join, leave and are forgotten.

Memory and open files must not grow, and the state directory must stay small. Clients do not train and share this
process, but use real sockets. The figures are written to runs/soak/result.json.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from puf_client.session.assignment import Assignment
from puf_client.session.connect import connect
from puf_client.session.settings import Offer, Running
from puf_client.transport.grpc import GrpcTransport
from puf_client.transport.retry import RetryPolicy
from puf_common.errors import PufError
from puf_common.tensors.manifest import MODEL, Manifest, TensorSpec
from puf_common.v1 import federation_pb2 as pb
from puf_common.v1 import tickets_pb2 as tk
from puf_lab.federations.processes import ServerProcess, wait_until
from puf_server.core.config import FederationConfig, Forgetting, Limits, Plan
from puf_server.storage.creation import create
from tests.results import OUT, Results
from tests.soak.day import Day

MANIFEST = Manifest((TensorSpec("w", "f32", (512, 512)), TensorSpec("seen", "i64", (), "buffer")))
# The largest growth from the middle third of the run to the last third that counts as flat.
_RSS_GROWTH = 0.05
_FILES_GROWTH = 3


class Visitor(threading.Thread):
    """A client that joins, works for some rounds and leaves, with or without a call. Some ask to be forgotten."""

    def __init__(self, target: str, name: str, seed: int, ending: threading.Event) -> None:
        super().__init__(name=name, daemon=True)
        self._target, self._ending = target, ending
        self._random = Random(f"{seed} {name}")
        self.rounds = 0
        self.forgotten = self.asked = False

    def run(self) -> None:
        while not self._ending.is_set() and not self.forgotten:
            with suppress(PufError):
                self._stay(self._random.randint(5, 40))
            self._ending.wait(self._random.uniform(0.0, 1.0))

    def _stay(self, rounds: int) -> None:
        with GrpcTransport(
            self._target, self.name, retry=RetryPolicy(first_pause=0.05, longest_pause=0.5)
        ) as transport:
            session = connect(transport, Offer(samples=10, manifest=MANIFEST), running=Running(wait_seconds=1.0))
            try:
                for work in session:
                    if isinstance(work, Assignment):
                        step = np.float32(self._random.uniform(-0.01, 0.01))
                        work.submit({"w": work.weights["w"] + step, "seen": np.int64(work.round)})
                        self.rounds, rounds = self.rounds + 1, rounds - 1
                    if self._ending.is_set() or rounds <= 0:
                        break
                if session.leave is not None:
                    self.forgotten = session.leave.reason == pb.LeaveOrder.REASON_FORGOTTEN
            finally:
                # Half of the clients disappear without a call.
                if self._random.random() < 0.5:
                    session.close()
                else:
                    session._closing.set()

    def ask(self) -> None:
        self.asked = True
        with GrpcTransport(self._target, self.name) as transport:
            request = tk.UnlearningRequest(request_key="soak", scope=tk.SCOPE_CLIENT)
            transport.file_unlearning(pb.FileUnlearningRequest(request=request))


def sample(process: ServerProcess, state: Path) -> dict[str, int]:
    rss = next(
        line for line in Path(f"/proc/{process.pid}/status").read_text().splitlines() if line.startswith("VmRSS")
    )
    return {
        "rss_kb": int(rss.split()[1]),
        "files": len(os.listdir(f"/proc/{process.pid}/fd")),
        "threads": len(os.listdir(f"/proc/{process.pid}/task")),
        "state_kb": sum(p.stat().st_size for p in state.rglob("*") if p.is_file()) // 1024,
    }


def soak(out: Path, rounds: int, clients: int, seed: int) -> dict[str, Any]:
    state = out / "state"
    plan = Plan(rounds=rounds, min_clients=2, heartbeat_seconds=0.5, absent_seconds=3.0, evaluate_every=0, quorum=0.5)
    forgetting = Forgetting(blind_recovery_rounds=2, measure_seconds=0.0, max_recovery_rounds=2)
    # More than half of all samples are forgotten at the end. With the usual limit this needs the operator's approval.
    limits = Limits(forget_share=1.0)
    config = FederationConfig(id="soak", model="none", plan=plan, forgetting=forgetting, limits=limits)
    create(state, config, MANIFEST, bytearray(MANIFEST.nbytes(MODEL)), time.time())
    samples: list[dict[str, int]] = []
    ending, started, newcomers = threading.Event(), time.monotonic(), clients
    server = ServerProcess(state, out / "server.log")
    with server:
        visitors = [Visitor(server.address, f"client-{i}", seed, ending) for i in range(clients)]
        for visitor in visitors:
            visitor.start()
        reached = 0
        while reached < rounds:
            time.sleep(0.2)
            with suppress(PufError):
                status = server.control.status()
                if status.rounds_trained // 10 > reached // 10:
                    samples.append({"round": status.position.round, **sample(server, state)})
                    print(f"{time.monotonic() - started:6.0f} s  {samples[-1]}", flush=True)
                if status.rounds_trained // 50 > reached // 50 and status.rounds_trained < rounds - 20:
                    # Every fifty rounds one client is forgotten and a new one joins.
                    old = next(v for v in visitors if not v.asked and v.rounds)
                    old.ask()
                    visitors.append(Visitor(server.address, f"client-{newcomers}", seed, ending))
                    newcomers += 1
                    visitors[-1].start()
                reached = status.rounds_trained
            if server.code is not None:
                raise PufError(f"the server ended with code {server.code}: {server.tail()}")
        # The last target is not forgotten yet: the idle federation wakes its clients for it.
        wait_until(lambda: all(t.state == tk.TICKET_STATE_COMPLETED for t in server.control.tickets()), 120, server)
        ending.set()
        tickets = server.control.tickets()
        server.control.stop()
        server.wait(60)
        server.control.__exit__(None, None, None)
    for visitor in visitors:
        visitor.join(30)
    shutil.rmtree(state)
    return {
        "rounds": reached,
        "clients": newcomers,
        "updates": sum(v.rounds for v in visitors),
        "forgotten": sum(t.state == tk.TICKET_STATE_COMPLETED for t in tickets),
        "tickets": len(tickets),
        "samples": samples,
    }


def judged(result: dict[str, Any]) -> dict[str, Any]:
    """Compares the last third with the middle one. The first third is warm-up."""
    third = len(result["samples"]) // 3
    middle, last = result["samples"][third : 2 * third], result["samples"][2 * third :]

    def mean(samples: list[dict[str, int]], key: str) -> float:
        return round(sum(s[key] for s in samples) / max(1, len(samples)), 1)

    facts = {
        f"{key}_{when}": mean(s, key)
        for key in ("rss_kb", "files", "threads", "state_kb")
        for when, s in (("middle", middle), ("last", last))
    }
    flat = facts["rss_kb_last"] <= facts["rss_kb_middle"] * (1 + _RSS_GROWTH)
    flat &= facts["files_last"] <= facts["files_middle"] + _FILES_GROWTH
    return {**facts, "flat": bool(flat and third > 0)}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--rounds", type=int, default=400, help="training rounds of the server process (default 400)")
    parser.add_argument("--day-clients", type=int, default=1000, help="clients of the simulated day (default 1000)")
    parser.add_argument("--clients", type=int, default=6, help="clients at a time (default 6)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("runs/soak"))
    arguments = parser.parse_args()
    passed = not arguments.day_clients or _day(arguments.day_clients, arguments.seed)
    if not arguments.rounds:
        return 0 if passed else 1
    shutil.rmtree(arguments.out, ignore_errors=True)
    arguments.out.mkdir(parents=True)
    words = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    told = subprocess.run(words, capture_output=True, text=True, check=False, cwd=Path(__file__).parent)
    result: dict[str, Any] = {"passed": False, "commit": told.stdout.strip(), "seed": arguments.seed}
    started = time.monotonic()
    try:
        result |= soak(arguments.out, arguments.rounds, arguments.clients, arguments.seed)
        result |= judged(result)
        result["passed"] = result["flat"] and result["forgotten"] == result["tickets"] > 0
    except Exception as error:
        result["failure"] = repr(error)
    result["seconds"] = round(time.monotonic() - started, 1)
    (arguments.out / "result.json").write_text(json.dumps(result, indent=1) + "\n")
    shown = {k: v for k, v in result.items() if k != "samples"}
    print(json.dumps(shown, indent=1))
    return 0 if result["passed"] and passed else 1


def _day(clients: int, seed: int) -> bool:
    """A simulated day; its figures go to runs/torture/result.json."""
    results = Results(OUT / "result.json", "soak", resume=True)
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as scratch:
        day = Day(Path(scratch), clients, seed)
        day.run(24, lambda told: print(f"{time.monotonic() - began:6.0f} s  {told}", flush=True))
        day.close()
        facts = judged({"samples": [{**s, "threads": 0} for s in day.samples]})
    unfinished = day.unfinished
    failure = "" if facts["flat"] and unfinished <= 1 else f"not flat, or {unfinished} tickets are not completed"
    counts = {**day.counts, "simulated hours": len(day.samples), "clients": clients}
    results.add("a day", counts=counts, seconds=round(time.monotonic() - began), **facts, failure=failure)
    return not failure


if __name__ == "__main__":
    sys.exit(main())
