"""`puf-client init`: a commented configuration, and a task of one's own to start from."""

from __future__ import annotations

from pathlib import Path

from puf_common.errors import UsageError

__all__ = ["CONFIGURATION", "TASK", "write"]

CONFIGURATION = """\
# Settings of puf-client. Use: puf-client run --config puf-client.toml
# Every key is also a flag (--data-dir) and a variable (PUF_DATA_DIR); flags win over variables, variables over this file.

# The federation, and who you are in it. A name is for life: requests to be forgotten go by it.
server = "127.0.0.1:7300"
name = "my-clinic"
# Over a network: the authority of the server's certificate, and your own certificate (puf-client enroll) or token.
# tls_ca = "certs/ca.crt"
# tls_cert = "certs/my-clinic.crt"
# tls_key = "certs/my-clinic.key"
# token_file = "certs/my-clinic.token"
# Where to keep what must outlive a run, for instance which samples were forgotten. Never delete it.
# state = "state"

# Your data: built in ("digits"), or a function of your own. Relative paths start at this file.
data = "my_task:load"
# data_dir = "data"
# data_option = { split = "2024" }

# Only where the federation's model or task is not built in: your own code for them.
# model = "my_task:build"
# task = "my_task:Task"

# Built-in datasets are split among clients: which part is yours, counted from 0.
# shard = "0/10"
# partition = "iid"

# auto, cpu, cuda or cuda:N
device = "auto"
"""

TASK = '''\
"""Data, model and task of your own. Try them with: puf-client check --config puf-client.toml"""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.data import TensorDataset

from puf_client import ClientData, DataContext

# Raise it whenever a change here changes what is trained; a federation may ask for one version.
__version__ = "1"


def load(ctx: DataContext) -> ClientData:
    """Your data. `ctx` has shard, shards, seed, directory and options; the same ctx must give the same samples."""
    generator = torch.Generator().manual_seed(ctx.seed + ctx.shard)
    x = torch.randn(240, 1, 8, 8, generator=generator)
    y = (x.mean(dim=(1, 2, 3)) > 0).long()
    train, holdout = TensorDataset(x[:200], y[:200]), TensorDataset(x[200:], y[200:])
    return ClientData(
        train=train,
        # `train` without augmentation, in the same order; the same object where there is none.
        train_plain=train,
        # Never trained on; tells how good the model is. None where you have none.
        holdout=holdout,
        # Unique and for good: `puf-client unlearn --forget FILE` names samples by these.
        ids=[f"sample-{i:04d}" for i in range(200)],
        # What can be forgotten together as group:NAME, e.g. all samples of a patient. None where there is no such thing.
        groups=[f"patient-{i // 10}" for i in range(200)],
    )


def build(options: dict[str, str]) -> nn.Module:
    """The network, for a federation whose model is "my_task:build". Normalise by groups: batch statistics leak."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, int(options.get("classes", "2"))))


class Task:
    """Loss and metrics, for a federation whose task is "my_task:Task". All but `loss` are per sample."""

    def loss(self, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(output, target)

    def sample_losses(self, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(output, target, reduction="none")

    def sample_scores(self, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """In [0, 1]: what people read as accuracy."""
        return (output.argmax(dim=1) == target).float()

    def confidences(self, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """Probability of the true class, for membership attacks."""
        return output.softmax(dim=1).gather(1, target[:, None]).squeeze(1)
'''


def write(directory: Path) -> list[Path]:
    """Writes both files; touches nothing when one of them is there already."""
    files = {directory / "puf-client.toml": CONFIGURATION, directory / "my_task.py": TASK}
    for path in files:
        if path.exists():
            raise UsageError(f"{path} is there already; nothing was written")
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for path, text in files.items():
            path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot write to {directory}: {error.strerror}") from None
    return list(files)
