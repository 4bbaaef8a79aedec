"""Flower on the same round, in a separate environment: its deployment engine and its older transport.

Each client sends a different update, because Flower sends equal arrays once. A round is timed inside Flower's server, from
sending the model to having the average.
"""

from __future__ import annotations

import json
import os
import socket
import statistics
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

from puf_common.errors import PufError
from puf_lab.bench.federation import PARAMETERS, peak_memory
from puf_lab.bench.report import Report, spread
from puf_lab.federations.processes import Process, wait_until

_CLIENTS = 10
_ROUNDS = 2

_PROJECT = """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"
[project]
name = "norounds"
version = "1.0.0"
license = "Apache-2.0"
dependencies = ["flwr"]
[tool.hatch.build.targets.wheel]
packages = ["."]
[tool.flwr.app]
publisher = "bench"
[tool.flwr.app.components]
serverapp = "norounds.app:server"
clientapp = "norounds.app:client"
[tool.flwr.app.config]
rounds = 1
parameters = 1
times = "times.json"
"""

_APP = """
import json, sys, time
import numpy as np
from flwr.client import ClientApp, NumPyClient, start_client
from flwr.common import ndarrays_to_parameters
from flwr.server import ServerApp, ServerAppComponents, ServerConfig, start_server
from flwr.server.strategy import FedAvg

class Sender(NumPyClient):
    def fit(self, parameters, config):
        noise = np.random.default_rng().standard_normal(1024).astype(np.float32)
        return [p + np.resize(noise, p.shape) for p in parameters], 1, {}

class Timed(FedAvg):
    def __init__(self, parameters, clients, path):
        first = ndarrays_to_parameters([np.zeros(parameters, np.float32)])
        super().__init__(fraction_evaluate=0.0, min_fit_clients=clients, min_available_clients=clients,
                         min_evaluate_clients=0, initial_parameters=first)
        self.path, self.times, self.begun = path, [], 0.0

    def configure_fit(self, *args, **kwargs):
        chosen = super().configure_fit(*args, **kwargs)
        self.begun = time.time()
        return chosen

    def aggregate_fit(self, number, results, failures):
        if failures or not results:
            raise RuntimeError(f"{len(results)} results, {len(failures)} failures")
        average = super().aggregate_fit(number, results, failures)
        self.times.append(time.time() - self.begun)
        with open(self.path, "w") as file:
            json.dump(self.times, file)
        return average

def components(context):
    c = context.run_config
    return ServerAppComponents(strategy=Timed(c["parameters"], CLIENTS, c["times"]), config=ServerConfig(c["rounds"]))

CLIENTS = 10
server = ServerApp(server_fn=components)
client = ClientApp(client_fn=lambda context: Sender().to_client())

if __name__ == "__main__":
    if sys.argv[1] == "server":
        strategy = Timed(int(sys.argv[3]), CLIENTS, sys.argv[5])
        start_server(server_address=sys.argv[2], config=ServerConfig(int(sys.argv[4])), strategy=strategy,
                     grpc_max_message_length=1 << 30)
    else:
        start_client(server_address=sys.argv[2], client=Sender().to_client(), grpc_max_message_length=1 << 30)
"""


def environment(directory: Path, *packages: str) -> Path:
    """Directory of the programs of an environment with these packages. The first call creates it."""
    programs = directory / "bin"
    if not (directory / "ready").exists():
        for command in (
            [sys.executable, "-m", "venv", str(directory)],
            [str(programs / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *packages],
        ):
            done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
            if done.returncode:
                raise PufError(f"{' '.join(packages)} could not be installed: {_last(done.stderr)}")
        (directory / "ready").touch()
    return programs


def flower(report: Report, scratch: Path, repeats: int) -> None:
    programs = environment(Path("runs/bench/flower").resolve(), "flwr", "hatchling")
    app = scratch / "norounds"
    (app / "norounds").mkdir(parents=True)
    (app / "pyproject.toml").write_text(_PROJECT)
    (app / "norounds" / "__init__.py").touch()
    (app / "norounds" / "app.py").write_text(_APP)
    ours = report.details.get("round_seconds", {}).get("puf")
    if not ours:
        raise PufError("Flower is compared with the part transfer: measure both, --only transfer,flower")
    for name, goal, measure in (("legacy", 5.0, _legacy), ("deployment", 40.0, _deployment)):
        times, memory = measure(programs, scratch, app)
        report.print(f"  Flower, {name}: {', '.join(f'{t:.1f}' for t in times)} s a round, server {memory:.0f} MB")
        ratio = statistics.median(times) / statistics.median(ours)
        note = f"Flower {spread(times)} s, {memory:.0f} MB"
        report.at_least(f"flower_{name}_to_round", ratio, goal, note=note)
        report.details[f"flower_{name}"] = {"seconds": times, "server_memory_mb": memory}


def _legacy(programs: Path, scratch: Path, app: Path) -> tuple[list[float], float]:
    address, times = f"127.0.0.1:{_free_port()}", scratch / "legacy.json"
    command = [str(programs / "python"), str(app / "norounds" / "app.py")]
    env = {"FLWR_TELEMETRY_ENABLED": "0"}
    with ExitStack() as stack:
        words = ["server", address, str(PARAMETERS), str(_ROUNDS + 1), str(times)]
        server = stack.enter_context(Process([*command, *words], scratch / "legacy-server.log", env=env))
        wait_until(lambda: _listens(address), 60, server)
        for i in range(_CLIENTS):
            stack.enter_context(Process([*command, "client", address], scratch / f"legacy-{i}.log", env=env))
        measured, memory = _wait(times, _ROUNDS + 1, server.pid, server)
    return measured[1:], memory


def _deployment(programs: Path, scratch: Path, app: Path) -> tuple[list[float], float]:
    home, times = scratch / "flwr-home", scratch / "deployment.json"
    home.mkdir()
    port, *nodes = [_free_port() for _ in range(1 + _CLIENTS)]
    (home / "config.toml").write_text(
        f'[superlink]\ndefault = "local"\n[superlink.local]\naddress = "127.0.0.1:{port}"\ninsecure = true\n'
    )
    env = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_HOME": str(home), "PATH": f"{programs}:{os.environ['PATH']}"}
    with ExitStack() as stack:

        def start(name: str, *words: str) -> Process:
            command = [str(programs / words[0]), *words[1:]]
            return stack.enter_context(Process(command, scratch / f"{name}.log", env=env, cwd=scratch))

        link = start(
            "superlink",
            *("flower-superlink", "--insecure", "--disable-runtime-dependency-installation"),
            *("--port", str(port)),
        )
        wait_until(lambda: _listens(f"127.0.0.1:{port}"), 120, link)
        for i, own in enumerate(nodes):
            start(
                f"supernode-{i}",
                *("flower-supernode", "--insecure", "--superlink", f"127.0.0.1:{port}", "--port", str(own)),
                *("--node-config", f"partition-id={i} num-partitions={_CLIENTS}"),
            )
        config = f"rounds={_ROUNDS} parameters={PARAMETERS} times='{times}'"
        start("flwr-run", "flwr", "run", str(app), "local", "--stream", "--run-config", config)
        return _wait(times, _ROUNDS, link.pid, link)


def _wait(times: Path, rounds: int, pid: int, *processes: Process) -> tuple[list[float], float]:
    def read() -> list[float]:
        try:
            found: list[float] = json.loads(times.read_text())
        except (FileNotFoundError, ValueError):
            return []
        return found

    memory, until = 0.0, time.monotonic() + 120 + 150 * rounds
    while len(read()) < rounds:
        memory = max(memory, family_memory(pid))
        if time.monotonic() > until or any(p.code is not None for p in processes):
            raise PufError(f"Flower did not finish; its logs end: {processes[0].tail()}")
        time.sleep(0.25)
    return read(), memory


def family_memory(pid: int) -> float:
    """Sum of the peak memory of a process and its children. A peer's server consists of several processes."""
    import psutil

    family = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    total = 0.0
    for process in family:
        try:
            total += peak_memory(process.pid)
        except (OSError, PufError):
            continue
    return total


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def _listens(address: str) -> bool:
    host, _, port = address.partition(":")
    with socket.socket() as probe:
        return probe.connect_ex((host, int(port))) == 0


def _last(text: str) -> str:
    return text.strip().splitlines()[-1] if text.strip() else "no reason given"
