"""Measures rounds of one client: bytes that travel, and memory beside the model. `python footprint.py [--width W] [--all]`.

The model is the language model of lora_text with eight layers and adapters of rank 8. With --all every parameter is trained and
travels. The server is another process. Memory is the highest resident size of this process during the rounds, less its size
with the model loaded; Linux only.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import lora_text  # type: ignore[import-not-found]
import torch
from torch import nn

import puf_client as puf
from puf_common.models.networks import build_any
from puf_lab.federations.processes import ServerProcess, run_server_command

ROUNDS = 3
STATUS, CLEAR_PEAK = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def build(options: Mapping[str, str]) -> nn.Module:
    """Returns the model; with train_all=yes every parameter is trained."""
    model: nn.Module = lora_text.build({"rank": "8", "layers": "8", "width": options["width"]})
    return model.requires_grad_(True) if options["train_all"] == "yes" else model


def main() -> None:
    parser = argparse.ArgumentParser(description="bytes and memory of a round")
    parser.add_argument("--all", action="store_true", help="train and send every parameter")
    parser.add_argument("--width", default="512", help="width of the model (512)")
    given = parser.parse_args()
    options = {"train_all": "yes" if given.all else "no", "width": given.width}
    plan = ["--plan-rounds", str(ROUNDS), "--plan-min-clients", "1", "--plan-evaluate-every", "0"]
    with tempfile.TemporaryDirectory() as directory:
        state = Path(directory) / "federation"
        model = ["--model", "footprint:build", "--task", "lora_text:NextToken"]
        model += [f"--model-options={name}={value}" for name, value in options.items()]
        run_server_command("init", "--state", str(state), *model, *plan, "--recipe-lr", "0.001")
        with ServerProcess(state, Path(directory) / "server.log") as server:
            report(build_any("footprint:build", options, 1), server, Path(directory) / "client")


def warm_up() -> None:
    """Runs a step of a tiny model of the same kind: its code and its buffers depend on no model size."""
    tiny: nn.Module = lora_text.build({"rank": "8", "layers": "1"})
    x, y = lora_text.encoded(["The sky is blue."] * 2).tensors
    lora_text.NextToken().loss(tiny(x), y).backward()
    torch.optim.SGD((p for p in tiny.parameters() if p.requires_grad), 0.1).step()


def report(model: nn.Module, server: ServerProcess, state: Path) -> None:
    lines = lora_text.encoded(["The sky is blue.", "The river is long."])
    data, task = puf.ClientData(lines, ids=["one", "two"]), lora_text.NextToken()
    with puf.connect(server.address, name="one", data=data, model=model, task=task, state=state) as session:
        warm_up()
        loaded = kilobytes("VmRSS")
        CLEAR_PEAK.write_text("5")
        x, y = lines.tensors
        task.loss(model(x), y).backward()
        model.zero_grad()
        alone = kilobytes("VmHWM")
        CLEAR_PEAK.write_text("5")
        for job in session:
            optimizer = job.optimizer()
            for x, y in job.batches():
                optimizer.zero_grad()
                task.loss(model(x), y).backward()
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
    sys.stdout.write(f"one forward and one backward pass alone: {(alone - loaded) / 1e3:.1f} MB\n")


def kilobytes(name: str) -> int:
    found = re.search(rf"{name}:\s*(\d+) kB", STATUS.read_text())
    assert found is not None
    return int(found[1])


if __name__ == "__main__":
    main()
