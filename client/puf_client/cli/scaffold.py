"""`puf-client init`: writes a commented configuration, and data, model and task to start from."""

from __future__ import annotations

from puf_client.options import InitOptions
from puf_common.config.exit_codes import Exit
from puf_common.errors import UsageError

CONFIGURATION = """\
# Settings of puf-client. Use: puf-client run --config puf-client.toml
# Every key is also a flag (--data-dir) and a variable (PUF_DATA_DIR). Flags override variables, variables this file.

# The federation, and your name in it. Never change the name: requests to be forgotten use it.
server = "127.0.0.1:7300"
name = "my-clinic"
# Over a network: the authority of the server's certificate, and your certificate (puf-client enroll) or token.
# tls_ca = "certs/ca.crt"
# tls_cert = "certs/my-clinic.crt"
# tls_key = "certs/my-clinic.key"
# token_file = "certs/my-clinic.token"
# The directory for data that must survive a run, such as which samples were forgotten. Never delete it.
# state = "state"

# Your data: a built-in dataset ("digits"), or your function. Relative paths start at this file.
data = "my_task:load"
# data_dir = "data"
# data_option = { split = "2024" }

# Your model and task. Delete these lines if the federation's model or task is built in.
model = "my_task:build"
task = "my_task:Task"

# Built-in datasets are split into shards: which shard is yours, counted from 0.
# shard = "0/10"
# partition = "iid"

# auto, cpu, cuda or cuda:N
device = "auto"
"""

TASK = '''\
"""Your data, model and task. Try them with: puf-client check --config puf-client.toml"""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.data import TensorDataset

from puf_client import ClientData, DataContext

# Increase this when a change here affects training. A federation may require one version.
__version__ = "1"


def load(ctx: DataContext) -> ClientData:
    """Your data. `ctx` has shard, shards, seed, directory and options. An equal ctx must give equal samples."""
    generator = torch.Generator().manual_seed(ctx.seed + ctx.shard)
    x = torch.randn(240, 1, 8, 8, generator=generator)
    y = (x.mean(dim=(1, 2, 3)) > 0).long()
    train, holdout = TensorDataset(x[:200], y[:200]), TensorDataset(x[200:], y[200:])
    return ClientData(
        train,
        # Never trained on; used to evaluate models. May be None.
        holdout=holdout,
        # Unique and permanent: `puf-client unlearn --forget FILE` names samples by id.
        ids=[f"sample-{i:04d}" for i in range(200)],
        # Samples that can be forgotten together as group:NAME, e.g. all samples of a patient. May be None.
        groups=[f"patient-{i // 10}" for i in range(200)],
        # If `train` augments: train_plain=the same samples in the same order without augmentation.
    )


def test_set(ctx: DataContext) -> TensorDataset:
    """Samples of no client, equal for all. Only experiments of `puf-lab` use it."""
    generator = torch.Generator().manual_seed(ctx.seed + 1_000_000)
    x = torch.randn(400, 1, 8, 8, generator=generator)
    return TensorDataset(x, (x.mean(dim=(1, 2, 3)) > 0).long())


def build(options: dict[str, str]) -> nn.Module:
    """The network, for a federation whose model is "my_task:build". Use group normalisation: batch statistics leak."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, int(options.get("classes", "2"))))


class Task:
    """Loss and metrics, for a federation whose task is "my_task:Task". All but `loss` return one value per sample."""

    def loss(self, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(output, target)

    def sample_losses(self, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(output, target, reduction="none")

    def sample_scores(self, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """In [0, 1]: shown as accuracy."""
        return (output.argmax(dim=1) == target).float()

    def confidences(self, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """The probability of the true class, for membership attacks."""
        return output.softmax(dim=1).gather(1, target[:, None]).squeeze(1)
'''


def run_init(options: InitOptions) -> Exit:
    """Writes both files. Writes none if one of them exists."""
    directory = options.directory
    files = {directory / "puf-client.toml": CONFIGURATION, directory / "my_task.py": TASK}
    for path in files:
        if path.exists():
            raise UsageError(f"{path} exists; nothing was written")
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for path, text in files.items():
            path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot write to {directory}: {error.strerror}") from None
    for path in files:
        print(f"written: {path}")
    print("next: change both files, then run `puf-client check --config puf-client.toml`")
    return Exit.OK
