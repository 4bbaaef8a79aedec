"""NVIDIA FLARE's simulator on the same round, in a separate environment. Each client sends a different update.

A round is timed inside FLARE's controller: it sends the model, receives the updates and averages them.
"""

from __future__ import annotations

import json
import statistics
import time
from pathlib import Path

from puf_common.errors import PufError
from puf_lab.bench.federation import PARAMETERS
from puf_lab.bench.flower import environment, family_memory
from puf_lab.bench.report import Report, spread
from puf_lab.federations.processes import Process

_CLIENTS = 10
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
            results = self.send_model_and_wait(targets=self.sample_clients(), data=model)
            total = np.zeros(self.parameters, np.float64)
            for result in results:
                total += result.params["w"]
            weights = (total / len(results)).astype(np.float32)
            times.append(time.time() - begun)
            with open(self.path, "w") as file:
                json.dump({"times": times, "results": len(results)}, file)
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
    ours = report.details.get("round_seconds", {}).get("puf")
    if not ours:
        raise PufError("FLARE is compared with the part transfer: measure both, --only transfer,flare")
    programs = environment(Path("runs/bench/flare").resolve(), "nvflare")
    for name, text in (("norounds_server.py", _SERVER), ("norounds_client.py", _CLIENT), ("job.py", _JOB)):
        (scratch / name).write_text(text.lstrip())
    times_file = scratch / "times.json"
    words = ["job.py", str(PARAMETERS), str(_ROUNDS), str(_CLIENTS), str(times_file), str(scratch / "workspace")]
    memory, until = 0.0, time.monotonic() + _SECONDS
    with Process([str(programs / "python"), *words], scratch / "flare.log", cwd=scratch) as process:
        while process.code is None and time.monotonic() < until:
            memory = max(memory, family_memory(process.pid))
            time.sleep(0.25)
        if process.code != 0 or not times_file.exists():
            raise PufError(f"FLARE did not finish: {process.tail()}")
    result = json.loads(times_file.read_text())
    if result["results"] != _CLIENTS:
        raise PufError(f"{result['results']} of {_CLIENTS} FLARE clients answered")
    times = result["times"][1:]
    report.print(f"  FLARE simulator: {', '.join(f'{t:.1f}' for t in times)} s a round, all processes {memory:.0f} MB")
    report.at_least(
        "flare_simulator_to_round",
        statistics.median(times) / statistics.median(ours),
        3.0,
        note=f"FLARE {spread(times)} s",
    )
    report.details["flare"] = {"seconds": times, "all_processes_memory_mb": memory}
