"""Measures rounds of one client: bytes that travel, and memory beside the model. `python footprint.py [--all]`.

The model is a stack of linear layers of 42 MB with adapters of rank 8. With --all every parameter is trained and travels. The
server is another process. Memory is the highest resident size of this process during the rounds, less its size with the model
loaded; Linux only.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import TensorDataset

import puf_client as puf
from puf_common.models.networks import build_any
from puf_lab.federations.processes import ServerProcess, run_server_command

WIDTH, LAYERS, RANK, ROUNDS = 1024, 10, 8, 3
STATUS, CLEAR_PEAK = Path("/proc/self/status"), Path("/proc/self/clear_refs")


class Adapted(nn.Module):
    """x -> x + relu(W x + B A x), where only B is trained."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH).requires_grad_(False)
        self.a = nn.Linear(WIDTH, RANK, bias=False).requires_grad_(False)
        self.b = nn.Linear(RANK, WIDTH, bias=False)
        nn.init.zeros_(self.b.weight)

    def forward(self, x: Tensor) -> Tensor:
        return x + functional.relu(self.layer(x) + self.b(self.a(x)))


def build(options: Mapping[str, str]) -> nn.Module:
    """Returns the model; with train_all=yes every parameter is trained."""
    model = nn.Sequential(*(Adapted() for _ in range(LAYERS)))
    return model.requires_grad_(True) if options.get("train_all") == "yes" else model


def main() -> None:
    parser = argparse.ArgumentParser(description="bytes and memory of a round")
    parser.add_argument("--all", action="store_true", help="train and send every parameter")
    options = {"train_all": "yes" if parser.parse_args().all else "no"}
    plan = ["--plan-rounds", str(ROUNDS), "--plan-min-clients", "1", "--plan-evaluate-every", "0"]
    with tempfile.TemporaryDirectory() as directory:
        state = Path(directory) / "federation"
        model = ["--model", "footprint:build", "--model-options", f"train_all={options['train_all']}"]
        run_server_command("init", "--state", str(state), *model, *plan, "--recipe-lr", "0.001")
        with ServerProcess(state, Path(directory) / "server.log") as server:
            report(build_any("footprint:build", options, 1), server, Path(directory) / "client")


def warm_up() -> None:
    """Runs a step of a tiny model: torch loads code at its first step, which no model size changes."""
    tiny = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(tiny.parameters(), 0.1)
    tiny(torch.ones(1, 2)).sum().backward()
    optimizer.step()


def report(model: nn.Module, server: ServerProcess, state: Path) -> None:
    data = puf.ClientData(TensorDataset(torch.ones(2, WIDTH), torch.tensor([0, 1])), ids=["one", "two"])
    with puf.connect(server.address, name="one", data=data, model=model, state=state) as session:
        warm_up()
        loaded = kilobytes("VmRSS")
        CLEAR_PEAK.write_text("5")
        for job in session:
            optimizer = job.optimizer()
            for x, y in job.batches():
                optimizer.zero_grad()
                functional.cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call]
                optimizer.step()
            job.submit()
            if job.round == ROUNDS:
                break
        peak = kilobytes("VmHWM")
    committed = next(record for record in server.control.rounds() if record.number == ROUNDS - 1)
    weights = sum(p.nbytes for p in model.parameters())
    sent = sum(p.nbytes for p in model.parameters() if p.requires_grad)
    sys.stdout.write(f"model {weights / 1e6:.2f} MB, trained tensors {sent / 1e6:.2f} MB\n")
    sys.stdout.write(
        f"a round sends {committed.bytes_up / 1e6:.2f} MB and fetches {committed.bytes_down / 1e6:.2f} MB\n"
    )
    sys.stdout.write(f"memory beside the model: {(peak - loaded) / 1e3:.1f} MB at most\n")


def kilobytes(name: str) -> int:
    found = re.search(rf"{name}:\s*(\d+) kB", STATUS.read_text())
    assert found is not None
    return int(found[1])


if __name__ == "__main__":
    main()
