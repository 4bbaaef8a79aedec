"""Flower on the same round, in a separate environment: its deployment engine and its older transport.

Each client sends a different update, because Flower sends equal arrays once. A round is timed inside Flower's server, from
sending the model to having the average.
"""

from __future__ import annotations

import os
import socket
from contextlib import ExitStack
from pathlib import Path

from puf_lab.bench.federation import PARAMETERS
from puf_lab.bench.peers import CLIENTS, compare, environment, rounds_of_puf, wait_for_times
from puf_lab.bench.report import Report
from puf_lab.federations.processes import Process, wait_until

_ROUNDS = 2
_SECONDS = 570.0

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


def flower(report: Report, scratch: Path, repeats: int) -> None:
    ours = rounds_of_puf(report, "flower")
    programs = environment(Path("runs/bench/flower").resolve(), "flwr", "hatchling")
    app = scratch / "norounds"
    (app / "norounds").mkdir(parents=True)
    (app / "pyproject.toml").write_text(_PROJECT)
    (app / "norounds" / "__init__.py").touch()
    (app / "norounds" / "app.py").write_text(_APP)
    for name, goal, measure in (("legacy", 5.0, _legacy), ("deployment", 40.0, _deployment)):
        times, memory = measure(programs, scratch, app)
        compare(report, f"Flower {name}", times, ours, goal, f"server {memory:.0f} MB")
        report.details[f"flower_{name}"] = {"seconds": times, "server_memory_mb": memory}


def _legacy(programs: Path, scratch: Path, app: Path) -> tuple[list[float], float]:
    address, times = f"127.0.0.1:{_free_port()}", scratch / "legacy.json"
    command = [str(programs / "python"), str(app / "norounds" / "app.py")]
    env = {"FLWR_TELEMETRY_ENABLED": "0"}
    with ExitStack() as stack:
        words = ["server", address, str(PARAMETERS), str(_ROUNDS + 1), str(times)]
        server = stack.enter_context(Process([*command, *words], scratch / "legacy-server.log", env=env))
        wait_until(lambda: _listens(address), 60, server)
        for i in range(CLIENTS):
            stack.enter_context(Process([*command, "client", address], scratch / f"legacy-{i}.log", env=env))
        measured, memory = wait_for_times(times, _ROUNDS + 1, _SECONDS, server)
    return measured[1:], memory


def _deployment(programs: Path, scratch: Path, app: Path) -> tuple[list[float], float]:
    home, times = scratch / "flwr-home", scratch / "deployment.json"
    home.mkdir()
    port, *nodes = [_free_port() for _ in range(1 + CLIENTS)]
    (home / "config.toml").write_text(
        f'[superlink]\ndefault = "local"\n[superlink.local]\naddress = "127.0.0.1:{port}"\ninsecure = true\n'
    )
    env = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_HOME": str(home), "PATH": f"{programs}:{os.environ['PATH']}"}
    with ExitStack() as stack:

        def start(name: str, *words: str) -> Process:
            command = [str(programs / words[0]), *words[1:]]
            return stack.enter_context(Process(command, scratch / f"{name}.log", env=env, cwd=scratch))

        flags = ["--insecure", "--disable-runtime-dependency-installation", "--port", str(port)]
        link = start("superlink", "flower-superlink", *flags)
        wait_until(lambda: _listens(f"127.0.0.1:{port}"), 120, link)
        for i, node in enumerate(nodes):
            flags = ["--insecure", "--superlink", f"127.0.0.1:{port}", "--port", str(node)]
            flags += ["--node-config", f"partition-id={i} num-partitions={CLIENTS}"]
            start(f"supernode-{i}", "flower-supernode", *flags)
        config = f"rounds={_ROUNDS} parameters={PARAMETERS} times='{times}'"
        start("flwr-run", "flwr", "run", str(app), "local", "--stream", "--run-config", config)
        return wait_for_times(times, _ROUNDS, _SECONDS, link)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def _listens(address: str) -> bool:
    host, _, port = address.partition(":")
    with socket.socket() as probe:
        return probe.connect_ex((host, int(port))) == 0
