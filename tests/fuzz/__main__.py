"""`make torture`, second part: a million mutated messages to real servers, floods, and mutated answers to clients.

The run goes on where it stopped with --resume. A failure names the seed that shows it again.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import psutil

from puf_lab.federations.processes import DashboardProcess, ServerProcess
from tests.fuzz.client_fuzz import fuzz_client
from tests.fuzz.mass import Mass, floods, http_requests
from tests.fuzz.rig import ANSWERS, PATIENT, config, fuzz
from tests.pki import Pki
from tests.results import OUT, Results
from tests.running import make_state

_MESSAGES = 50_000
# The first calls load code and fill pools.
_WARM_UP = 5_000
_MEMORY = 40_000_000
_FILES = 4
_STREAMS = 300
_SESSIONS = 300


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--messages", type=int, default=1_000_000, help="mutated messages in all (default 1000000)")
    parser.add_argument("--servers", type=int, default=1000, help="servers to attack in this call (default: no limit)")
    parser.add_argument("--resume", action="store_true", help="continue the last run")
    parser.add_argument("--out", type=Path, default=OUT)
    arguments = parser.parse_args()
    results = Results(arguments.out / "result.json", "fuzz", resume=arguments.resume)
    for _ in range(arguments.servers):
        if _sent(results) >= arguments.messages:
            break
        seed = 1000 + len(results.parts)
        began = time.monotonic()
        counts: Counter[str] = Counter()
        facts: dict[str, Any] = {}
        failure = ""
        with tempfile.TemporaryDirectory() as scratch:
            try:
                _part(Path(scratch), seed, counts, facts)
            except Exception as error:
                failure = str(error) if isinstance(error, AssertionError) else traceback.format_exc()
        facts["seconds"] = round(time.monotonic() - began)
        results.add(f"seed {seed}", counts=dict(counts), **facts, failure=failure)
        print(f"seed {seed}: {_sent(results)} messages in all; {dict(counts)} {facts} {failure}", flush=True)
    return 1 if any(p["failure"] for p in results.parts) else 0


def _sent(results: Results) -> int:
    kinds = ("messages", "damaged updates and messages", "answers to clients", "HTTP requests")
    return sum(part["counts"].get(kind, 0) for part in results.parts for kind in kinds)


def _part(scratch: Path, seed: int, counts: Counter[str], facts: dict[str, Any]) -> None:
    _messages(scratch, seed, counts, facts)
    mutual: dict[str, Any] = {} if seed % 3 else {"tls": (pki := Pki(scratch / "pki")).server_tls(), "as_": pki.client}
    counts["damaged updates and messages"] += fuzz(scratch / "streams", seed, _STREAMS, **mutual).total()
    told, wrong = fuzz_client(scratch / "client", seed, _SESSIONS)
    counts["answers to clients"] += told
    assert not wrong, wrong[:5]


def _messages(scratch: Path, seed: int, counts: Counter[str], facts: dict[str, Any]) -> None:
    random = Random(seed)
    state = make_state(scratch / "state", config())
    with ServerProcess(state, scratch / "server.log", security=("--insecure", "--metrics", "127.0.0.1:0")) as server:
        process = psutil.Process(server.pid)
        mass = Mass(server.port, server.operator_port, seed)
        mass.send(_WARM_UP)
        before = (process.memory_info().rss, process.num_fds())
        mass.send(_MESSAGES - _WARM_UP)
        http_requests(random, server.more_ports[0], 500)
        counts["frames of floods"] += floods(random, server.port, 10_000)
        mass.close()
        with DashboardProcess(state, scratch / "dashboard.log") as dashboard:
            http_requests(random, dashboard.port, 500)
        counts["HTTP requests"] += 1000
        counts["messages"] += mass.answers.total()
        server.control.status()
        # Connections of the flood end when the server notices that they are closed.
        until = time.monotonic() + 60
        while process.num_fds() > before[1] + _FILES and time.monotonic() < until:
            time.sleep(0.5)
        after = (process.memory_info().rss, process.num_fds())
        facts |= {"memory": [before[0], after[0]], "descriptors": [before[1], after[1]], "answers": dict(mass.answers)}
        server.control.stop()
        server.wait(60)
    bad = set(mass.answers) - ANSWERS - PATIENT - {"CANCELLED"}
    assert not bad, f"answers {bad}: {mass.wrong[:5]}"
    for log in ("server.log", "dashboard.log"):
        text = (scratch / log).read_text(errors="replace")
        assert "Traceback" not in text, text[text.index("Traceback") :][:1500]
        assert '"level": "error"' not in text, text[text.index('"level": "error"') - 50 :][:600]
    assert after[0] - before[0] < _MEMORY, f"memory grew from {before[0]} to {after[0]}"
    assert after[1] <= before[1] + _FILES, f"descriptors grew from {before[1]} to {after[1]}"


if __name__ == "__main__":
    sys.exit(main())
