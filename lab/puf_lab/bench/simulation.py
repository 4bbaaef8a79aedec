"""Simulated federations in one process: the lab compared with pfl-research, in a separate environment with the same torch.

Both train the same network on the same images with the same batches, on one thread. A round is timed from one new model to
the next. The first rounds are left out.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import puf_common
from puf_common.errors import PufError
from puf_lab.bench.peers import environment
from puf_lab.bench.report import Report, spread
from puf_lab.bench.simulated_lab import write_data

_BATCH, _LR = 10, 0.05
_WARM_UP = 2


@dataclass(frozen=True)
class Case:
    """How many clients there are, how many take part in a round, and how many images each has."""

    clients: int
    cohort: int
    images: int
    rounds: int


CASES = {"10_clients": Case(10, 10, 200, 12), "1000_clients": Case(1000, 50, 50, 12)}

_PFL = """
import json, resource, sys, time
import numpy as np, torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam.base import NNTrainHyperParams
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel
from puf_common.models.networks import build

path, clients, cohort, rounds, batch, lr = sys.argv[1], *map(int, sys.argv[2:6]), float(sys.argv[6])
torch.set_num_threads(1)
torch.manual_seed(1)
np.random.seed(1)
x = torch.from_numpy(np.frombuffer(bytearray(open(path, "rb").read()), "<f4").reshape(-1, 1, 8, 8))
y = torch.arange(len(x)) % 10
each = len(y) // clients

class Network(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = build("digits-cnn", {}, 1)
    def forward(self, x):
        return self.inner(x)
    def loss(self, x, y, is_eval=False):
        return torch.nn.functional.cross_entropy(self(x), y)
    def metrics(self, x, y):
        return {}

class Timed(TrainingProcessCallback):
    marks = [(time.perf_counter(), time.process_time())]
    def after_central_iteration(self, *args, **kwargs):
        self.marks.append((time.perf_counter(), time.process_time()))
        return False, Metrics()

def dataset(user):
    return PyTorchTensorDataset((x[user * each:(user + 1) * each], y[user * each:(user + 1) * each]), user_id=user)

network = Network()
model = PyTorchModel(network, torch.optim.SGD, torch.optim.SGD(network.parameters(), 1.0))
sampler = get_user_sampler("minimize_reuse", list(range(clients)))
backend = SimulatedBackend(FederatedDataset(dataset, sampler), None)
FederatedAveraging().run(
    NNAlgorithmParams(central_num_iterations=rounds, evaluation_frequency=10**9, train_cohort_size=cohort, val_cohort_size=0),
    backend, model, NNTrainHyperParams(local_num_epochs=1, local_learning_rate=lr, local_batch_size=batch),
    callbacks=[Timed()], send_metrics_to_platform=False)
accuracy = float((network(x[:500]).argmax(1) == y[:500]).float().mean())
memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
print(json.dumps({"marks": Timed.marks, "accuracy": accuracy, "memory": memory}))
"""


def simulation(report: Report, scratch: Path, repeats: int) -> None:
    python = _pfl_python()
    program = scratch / "simulate_pfl.py"
    program.write_text(_PFL)
    lab = [sys.executable, "-m", f"{__package__}.simulated_lab"]
    for label, case in CASES.items():
        data = scratch / f"{label}.images"
        write_data(data, case.clients * case.images)
        words = [str(data), *map(str, (case.clients, case.cohort, case.rounds, _BATCH, _LR))]
        ways = {
            "pfl": [str(python), str(program), *words],
            "lab": [*lab, *words, "none"],
            "durable": [*lab, *words, "full"],
        }
        found: dict[str, list[dict[str, Any]]] = {way: [] for way in ways}
        for _ in range(max(2, repeats // 2)):
            for way, command in ways.items():
                found[way].append(_measured(command))
        _compare(report, label, found)


def _pfl_python() -> Path:
    """The interpreter of an environment with pfl, which uses this environment's torch: both run the same kernels."""
    programs = environment(Path("runs/bench/pfl").resolve(), "pfl")
    paths = (sysconfig.get_path("purelib"), str(Path(puf_common.__path__[0]).parent))
    site = next((programs.parent / "lib").glob("python*/site-packages"))
    (site / "torch-of-puf.pth").write_text("".join(f"{path}\n" for path in paths))
    return programs / "python"


def _measured(command: list[str]) -> dict[str, Any]:
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    if done.returncode:
        raise PufError(f"{Path(command[1]).name} failed: {(done.stderr.strip() or 'no reason given').splitlines()[-1]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    marks = found.pop("marks")[_WARM_UP:]
    found["seconds"] = [after[0] - before[0] for before, after in pairwise(marks)]
    found["processor_seconds"] = [after[1] - before[1] for before, after in pairwise(marks)]
    return found


def _compare(report: Report, label: str, found: dict[str, list[dict[str, Any]]]) -> None:
    for kind in ("processor_seconds", "seconds"):
        times = {way: [t for run in runs for t in run[kind]] for way, runs in found.items()}
        for way in ("lab", "durable"):
            ratio = statistics.median(times[way]) / statistics.median(times["pfl"])
            name = f"simulation_{label}_{kind}_{'' if way == 'lab' else 'durable_'}to_pfl"
            goal = 1.0 if way == "lab" else None
            report.at_most(name, ratio, goal, note=f"{spread(times[way])} against {spread(times['pfl'])} s a round")
    memory = {way: max(run["memory"] for run in runs) for way, runs in found.items()}
    report.at_most(f"simulation_{label}_memory", memory["lab"], None, "MB", note=f"pfl {memory['pfl']:.0f} MB")
    report.details[f"simulation_{label}"] = found
