"""NVIDIA FLARE's simulator on the same round, in a separate environment. Each client sends a different update.

A round is timed inside FLARE's controller: it sends the model, receives the updates and averages them.
"""

from __future__ import annotations

from pathlib import Path

from puf_lab.bench.federation import PARAMETERS
from puf_lab.bench.peers import CLIENTS, compare, environment, rounds_of_puf, wait_for_times
from puf_lab.bench.report import Report
from puf_lab.federations.processes import Process

# The first round includes the start of the clients.
_ROUNDS = 4
_SECONDS = 600.0

_SERVER = """
import json
import time

import numpy as np
from nvflare.app_common.abstract.fl_model import FLModel
from nvflare.app_common.workflows.model_controller import ModelController


class Timed(ModelController):
    def __init__(self, parameters: int = 1, rounds: int = 1, path: str = ""):
        super().__init__()
        self.parameters, self.rounds, self.path = parameters, rounds, path

    def run(self):
        weights, times = np.zeros(self.parameters, np.float32), []
        for number in range(self.rounds):
            begun = time.time()
            model = FLModel(params={"w": weights}, current_round=number, total_rounds=self.rounds)
            clients = self.sample_clients()
            results = self.send_model_and_wait(targets=clients, data=model)
            if len(results) != len(clients):
                raise RuntimeError(f"{len(results)} of {len(clients)} clients answered")
            total = np.zeros(self.parameters, np.float64)
            for result in results:
                total += result.params["w"]
            weights = (total / len(results)).astype(np.float32)
            times.append(time.time() - begun)
            with open(self.path, "w") as file:
                json.dump(times, file)
"""

_CLIENT = """
import numpy as np
import nvflare.client as flare

flare.init()
while flare.is_running():
    model = flare.receive()
    noise = np.random.default_rng().standard_normal(1024).astype(np.float32)
    w = model.params["w"]
    flare.send(flare.FLModel(params={"w": w + np.resize(noise, w.shape)}))
"""

_JOB = """
import sys
from norounds_server import Timed
from nvflare.job_config.api import FedJob
from nvflare.job_config.script_runner import FrameworkType, ScriptRunner

parameters, rounds, clients, path, workspace = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4], sys.argv[5]
job = FedJob(name="norounds", min_clients=clients)
job.to_server(Timed(parameters, rounds, path))
for i in range(clients):
    job.to(ScriptRunner(script="norounds_client.py", framework=FrameworkType.NUMPY), f"site-{i}")
job.simulator_run(workspace, threads=clients)
"""


def flare(report: Report, scratch: Path, repeats: int) -> None:
    ours = rounds_of_puf(report, "flare")
    programs = environment(Path("runs/bench/flare").resolve(), "nvflare")
    for name, text in (("norounds_server.py", _SERVER), ("norounds_client.py", _CLIENT), ("job.py", _JOB)):
        (scratch / name).write_text(text.lstrip())
    times_file = scratch / "times.json"
    words = ["job.py", str(PARAMETERS), str(_ROUNDS), str(CLIENTS), str(times_file), str(scratch / "workspace")]
    with Process([str(programs / "python"), *words], scratch / "flare.log", cwd=scratch) as process:
        measured, memory = wait_for_times(times_file, _ROUNDS, _SECONDS, process)
    times = measured[1:]
    compare(report, "FLARE simulator", times, ours, 3.0, f"all processes {memory:.0f} MB")
    report.details["flare"] = {"seconds": times, "all_processes_memory_mb": memory}
