"""The lab's side of the simulation bench, as a process: generated 8x8 images, a federation, one line of figures."""

from __future__ import annotations

import json
import resource
import sys
import tempfile
import time
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import TensorDataset

from puf_client.data.api import ClientData, DataContext
from puf_common.logging import configure
from puf_common.models.module_tensors import load_payload, manifest_of
from puf_common.models.networks import build
from puf_lab.federations.in_process import InProcessFederation
from puf_lab.spec.federation import DataSpec, FederationSpec, ModelSpec
from puf_server.core.config import Recipe


def write_data(path: Path, images: int) -> None:
    """Writes images that a network can learn: ten patterns under noise. The label of image i is i modulo 10."""
    chance = np.random.default_rng(1)
    patterns = chance.normal(0, 1, (10, 1, 8, 8))
    labels = np.arange(images) % 10
    pixels = patterns[labels] + chance.normal(0, 1, (images, 1, 8, 8))
    pixels.astype("<f4").tofile(path)


@lru_cache(maxsize=1)
def _read(path: Path) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    x = np.frombuffer(bytearray(path.read_bytes()), "<f4").reshape(-1, 1, 8, 8)
    return x, np.arange(len(x)) % 10


def client_data(ctx: DataContext) -> ClientData:
    x, y = _read(Path(ctx.options["file"]))
    each = len(y) // ctx.shards
    mine = slice(ctx.shard * each, (ctx.shard + 1) * each)
    dataset = TensorDataset(torch.from_numpy(x[mine]), torch.from_numpy(y[mine]))
    return ClientData(dataset, ids=[f"image-{i}" for i in range(mine.start, mine.stop)])


def main() -> None:
    path, durability = Path(sys.argv[1]), sys.argv[7]
    clients, cohort, rounds, batch = map(int, sys.argv[2:6])
    configure(level="error")
    spec = FederationSpec(
        data=DataSpec(name=f"{__package__}.simulated_lab:client_data", clients=clients, options={"file": str(path)}),
        model=ModelSpec(name="digits-cnn"),
        recipe=Recipe(lr=float(sys.argv[6]), lr_decay=1.0, batch_size=batch, seed=1),
        rounds=rounds,
        participation=cohort / clients,
        durability="full" if durability == "full" else "none",
    )
    with tempfile.TemporaryDirectory() as scratch:
        begun = time.perf_counter()
        with InProcessFederation(spec, Path(scratch) / "federation", keep_models=1) as federation:
            joined = time.perf_counter() - begun
            marks = [(time.perf_counter(), time.process_time())]
            federation.train(lambda _: marks.append((time.perf_counter(), time.process_time())))
            payload = federation.payload()
    network = build("digits-cnn", {}, 1)
    load_payload(network, manifest_of(network), payload)
    x, y = _read(path)
    with torch.no_grad():
        right = network.eval()(torch.from_numpy(x[:500])).argmax(1) == torch.from_numpy(y[:500])
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    found = {"marks": marks, "accuracy": float(right.float().mean()), "memory": memory, "join": joined}
    print(json.dumps(found))  # noqa: T201


if __name__ == "__main__":
    main()
