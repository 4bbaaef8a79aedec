"""Three servers of one federation in PostgreSQL: kills, pauses and database restarts at random moments."""

from __future__ import annotations

import shutil
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from random import Random

from tests.postgres import Postgres, programs
from tests.results import Results
from tests.running import make_state, tiny_config
from tests.several_servers import NAMES, SECONDS, Clients, Servers, one_process_in_sqlite

from puf_common.errors import PufError
from puf_lab.federations.processes import run_server_command, wait_until
from puf_server.storage.postgres_database import PostgresDatabase

__all__ = ["several_servers"]

# What happens before an update is sent, and how often.
_FAULTS = {"kill": 0.25, "stop": 0.1, "restart": 0.1, "nothing": 0.55}
# Longer than the other servers wait for a silent one.
_STOPPED_SECONDS = 15.0


def several_servers(out: Path, rounds: int, seed: int, results: Results) -> None:
    """Runs so many rounds. Every update must be counted once, and the weights be those of one server in SQLite."""
    found = programs()
    if found is None:
        print("skipped: PostgreSQL is not installed, and no federation has several servers")
        return
    directory = out / "several"
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    counts: Counter[str] = Counter()
    with Postgres(found) as postgres:
        failure = _run(directory, postgres, rounds, Random(seed), counts)
    print(
        f"{rounds} rounds of three servers: {dict(counts)}; {failure or 'nothing lost, weights identical'}", flush=True
    )
    results.add("several servers", counts=dict(counts), failure=failure)
    if not failure:
        shutil.rmtree(directory)


def _run(directory: Path, postgres: Postgres, rounds: int, rng: Random, counts: Counter[str]) -> str:
    config = tiny_config(plan={"min_clients": 3, "rounds": rounds, "absent_seconds": 3600.0})
    address = postgres.address()
    make_state(directory / "files", config, database=address)
    with ExitStack() as stack:
        servers = Servers(directory, address, stack)
        clients = Clients(servers, stack)
        woken_at: dict[int, float] = {}

        def strike() -> None:
            for number, at in list(woken_at.items()):
                if time.monotonic() > at:
                    servers.wake(number)
                    del woken_at[number]
            fault = rng.choices(list(_FAULTS), list(_FAULTS.values()))[0]
            running = [n for n in range(3) if n not in servers.stopped]
            if fault == "restart":
                postgres.restart("immediate")
            elif fault == "kill":
                servers.kill(rng.choice(running))
            elif fault == "stop" and len(running) == 3:
                number = rng.choice(running)
                servers.stop(number)
                woken_at[number] = time.monotonic() + rng.uniform(1.0, _STOPPED_SECONDS)
            counts[fault] += 1

        try:
            clients.join()
            for number in range(1, rounds + 1):
                for name in NAMES:
                    clients.train(name, number, strike)
            for number in list(servers.stopped):
                servers.wake(number)
            wait_until(lambda: servers.control().status().rounds_trained == rounds, SECONDS)
            model = clients.call("a", lambda raw: raw.fetch(rounds))
            run_server_command("audit", "verify", "--state", address, "--files", str(directory / "files"))
        except (PufError, AssertionError) as error:
            return f"{type(error).__name__}: {error}; see {directory}"
        finally:
            for number in list(servers.stopped):
                servers.wake(number)
    state = PostgresDatabase(address)
    try:
        committed = {number: record.contributions for number, record in state.load().records.items()}
    finally:
        state.close()
    if committed != dict.fromkeys(range(1, rounds + 1), len(NAMES)):
        return f"updates were lost or counted twice: {committed}"
    same = model == one_process_in_sqlite(directory / "reference", config)
    return "" if same else "the weights differ from those of one server"
