"""Tries the compose file for real: a federation of containers trains, loses its server twice, and forgets one replica.

    python deploy/try_compose.py [--clients 4] [--keep]

Brings `docker-compose.yml` up under a project name of its own and takes everything down again, volumes too. Needs a Docker
engine and either `docker compose` or `docker-compose`; where there is none it says so and ends with 0.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROJECT = f"puf-try-{os.getpid()}"
SECONDS = 180.0
ROUNDS = 20


class Compose:
    """One project of the compose file, and what can be asked of it from the host."""

    def __init__(self, program: list[str], clients: int) -> None:
        self._program = program
        self.clients = clients
        self.ports = {"PUF_PORT": free_port(), "PUF_METRICS_PORT": free_port()}
        self._env = os.environ | {name: str(port) for name, port in self.ports.items()}
        self._env |= {"PUF_ROUNDS": str(ROUNDS), "PUF_CLIENTS": str(clients), "PUF_SHARDS": str(clients + 1)}

    def command(self, *words: str) -> list[str]:
        return [*self._program, "-p", PROJECT, "-f", str(ROOT / "docker-compose.yml"), *words]

    def __call__(self, *words: str, ok: bool = True) -> str:
        done = subprocess.run(self.command(*words), env=self._env, cwd=ROOT, capture_output=True, text=True)
        if ok and done.returncode:
            raise SystemExit(f"failed ({done.returncode}): {' '.join(words)}\n{done.stdout}\n{done.stderr}")
        return done.stdout

    def inside(self, index: int, *words: str) -> str:
        return self("exec", "-T", f"--index={index}", "client", *words)

    def server(self, *words: str) -> str:
        return self("exec", "-T", "server", "puf-server", *words)

    def beside(self, index: int, *words: str) -> subprocess.Popen[str]:
        command = self.command("exec", "-T", f"--index={index}", "client", *words)
        return subprocess.Popen(
            command, env=self._env, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )

    def replica(self, index: int) -> tuple[str, int]:
        """State and exit code of one replica's container."""
        ids = self("ps", "-a", "-q", "client", ok=False) or self("ps", "-q", "client")
        for container in ids.split():
            form = (
                '{{.State.Status}} {{.State.ExitCode}} {{index .Config.Labels "com.docker.compose.container-number"}}'
            )
            status, code, number = docker("inspect", "-f", form, container).split()
            if int(number) == index:
                return status, int(code)
        raise SystemExit(f"there is no replica {index}")

    def metrics(self) -> dict[str, float]:
        """Values by name and labels as they stand in the text; empty where nobody answers."""
        try:
            with urllib.request.urlopen(
                f"http://127.0.0.1:{self.ports['PUF_METRICS_PORT']}/metrics", timeout=5
            ) as reply:
                lines = reply.read().decode().splitlines()
        except OSError:
            return {}
        return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if not line.startswith("#")}


def docker(*words: str) -> str:
    return subprocess.run(["docker", *words], check=True, stdout=subprocess.PIPE, text=True).stdout  # noqa: S607


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def found_program() -> list[str] | None:
    for words in (["docker", "compose"], ["docker-compose"]):
        if shutil.which(words[0]) and subprocess.run([*words, "version"], capture_output=True).returncode == 0:
            return words
    return None


def engine_answers() -> bool:
    if not shutil.which("docker"):
        return False
    return subprocess.run(["docker", "info"], capture_output=True).returncode == 0  # noqa: S607


def wait_for(what: str, condition: Callable[[], bool]) -> None:
    until = time.monotonic() + SECONDS
    while not condition():
        if time.monotonic() > until:
            raise SystemExit(f"waited {SECONDS:.0f} s in vain: {what}")
        time.sleep(0.1)


def check(claim: str, holds: bool, facts: object = "") -> None:
    print(f"{'ok  ' if holds else 'FAIL'}  {claim}", facts if not holds else "", flush=True)
    if not holds:
        raise SystemExit(1)


def experiment(compose: Compose, reports: Path) -> None:
    n, leaver = compose.clients, compose.clients - 1
    started = time.monotonic()
    compose("build")
    print(f"      images built in {time.monotonic() - started:.1f} s", flush=True)
    started = time.monotonic()
    compose("up", "-d", "--scale", f"client={n}")
    wait_for("the server", lambda: bool(compose.metrics()))
    print(f"      server answers {time.monotonic() - started:.1f} s after `up`, on empty volumes", flush=True)
    wait_for("round 1", lambda: compose.metrics().get("puf_round", 0) >= 1)
    print(f"      first round of {n} clients {time.monotonic() - started:.1f} s after `up`", flush=True)

    wait_for("round 3", lambda: compose.metrics().get("puf_round", 0) >= 3)
    compose("kill", "-s", "SIGKILL", "server")
    check("the server was killed while it trained", not compose.metrics())
    started = time.monotonic()
    compose("start", "server")
    wait_for("the server", lambda: bool(compose.metrics()))
    print(f"      server answers {time.monotonic() - started:.1f} s after `start`", flush=True)
    idle = 'puf_phase{phase="idle"}'
    wait_for("the rest of the training", lambda: compose.metrics().get(idle) == 1)
    trained = compose.metrics()
    check(
        f"all {ROUNDS} rounds were trained, none twice", trained['puf_rounds_committed_total{kind="train"}'] == ROUNDS
    )
    check(
        f"{n} replicas hold {n} shards of {n + 1}", (trained["puf_shards_leased"], trained["puf_shards"]) == (n, n + 1)
    )
    shards = {c["name"]: c.get("shard") for c in json.loads(compose.server("clients", "--json"))}
    check("replica i trains on shard i - 1", shards == {f"client-{i}": i - 1 for i in range(1, n + 1)}, shards)

    compose.server("pause")
    asking = compose.beside(leaver, "puf-client", "--unlearn", "--yes")
    wait_for("the request", lambda: compose.metrics().get('puf_tickets{state="pending"}', 0) == 1)
    compose("kill", "-s", "SIGKILL", "server")
    compose("start", "server")
    wait_for("the server", lambda: bool(compose.metrics()))
    check("the request outlived the server", compose.metrics()['puf_tickets{state="pending"}'] == 1)
    compose.server("resume")
    told, _ = asking.communicate(timeout=SECONDS)
    check(f"client-{leaver} asked by its own command and was forgotten", asking.returncode == 0, told)
    print("      | " + "\n      | ".join(line for line in told.splitlines() if not line.startswith("{")), flush=True)

    wait_for("the container's end", lambda: compose.replica(leaver)[0] == "exited")
    check("its container ended with 0", compose.replica(leaver) == ("exited", 0), compose.replica(leaver))
    now = compose.metrics()
    check(
        "the metrics say so", now['puf_tickets{state="completed"}'] == now['puf_clients{state="forgotten"}'] == 1, now
    )
    check("the others are alive", now['puf_clients{state="alive"}'] == n - 1, now)
    check("in one round", now['puf_rounds_committed_total{kind="unlearn"}'] == 1, now)
    check("and the model recovered", "The model recovered" in told, told)

    (name,) = [w.rpartition("/")[2] for w in told.split() if w.endswith(".json") and "receipt-" in w]
    verified = compose.inside(1, "puf-client", "verify", f"clients/receipts/{name}")
    check("another replica verifies the receipt", f"client-{leaver}" in verified, verified)
    source = compose("ps", "-q", "server").split()[0]
    compose.server("export", "--out", "state/model.safetensors")
    docker("cp", f"{source}:/var/lib/puf/state/model.safetensors", str(reports))
    client = next(c for c in compose("ps", "-q", "client").split())
    for file in (name, name.replace(".json", ".html")):
        docker("cp", f"{client}:/var/lib/puf/clients/receipts/{file}", str(reports))
    receipt = json.loads((reports / name).read_text())
    check("receipt and model are on the host", "signature" in json.dumps(receipt), receipt)

    compose("up", "-d", "--scale", f"client={n + 1}")
    wait_for("one more client", lambda: compose.metrics().get('puf_clients{state="alive"}') == n)
    wait_for("the forgotten one's end", lambda: compose.replica(leaver)[0] == "exited")
    check("started again, the forgotten replica stays away", compose.replica(leaver) == ("exited", 0))
    shards = {c["name"]: c.get("shard") for c in json.loads(compose.server("clients", "--json"))}
    check("a new replica gets a shard of its own, not the forgotten one's", shards[f"client-{n + 1}"] == n, shards)


def main() -> int:
    parser = argparse.ArgumentParser(description="Try docker-compose.yml for real.")
    parser.add_argument("--clients", type=int, default=4, help="replicas (4)")
    parser.add_argument("--keep", action="store_true", help="leave the containers running")
    parser.add_argument(
        "--reports", type=Path, help="where receipt and model go (default: a directory that is deleted)"
    )
    arguments = parser.parse_args()
    program = found_program()
    if program is None or not engine_answers():
        print("skipped: no Docker engine answers here, or neither `docker compose` nor `docker-compose` is installed")
        return 0
    if arguments.clients < 3:
        parser.error("at least 3 clients: one leaves, and a round needs two")
    compose = Compose(program, arguments.clients)
    print(f"      {' '.join(program)}, project {PROJECT}", flush=True)
    with tempfile.TemporaryDirectory() as scratch:
        reports = arguments.reports or Path(scratch)
        reports.mkdir(parents=True, exist_ok=True)
        try:
            experiment(compose, reports)
        except SystemExit:
            print(compose("logs", "--tail=20", ok=False))
            raise
        finally:
            if not arguments.keep:
                compose("down", "-v", "-t", "5", ok=False)
                print("      taken down", flush=True)
    print("all of it works")
    return 0


if __name__ == "__main__":
    sys.exit(main())
