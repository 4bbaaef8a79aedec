"""`connect`: joins a federation from the user's code, with the user's data, model and training loop."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Never

from torch import nn

from puf_client.api.session import ROUTINES, Session
from puf_client.data.api import ClientData
from puf_client.options import Secured
from puf_client.state.directory import StateDirectory
from puf_client.tasks import BUILT_IN, Task, task_named
from puf_client.terminal import Display
from puf_client.transport.base import Transport
from puf_client.transport.dial import dial
from puf_client.worker.devices import choose
from puf_client.worker.membership import refuse_forgotten
from puf_client.worker.trainer import Trainer, require_same_model
from puf_client.worker.worker import Worker
from puf_common.errors import UsageError
from puf_common.tensors.manifest import Manifest
from puf_common.tracing.process import start as start_tracing
from puf_common.v1 import federation_pb2 as pb

# What to do about arguments of version 0.1.
_REMOVED = {
    "samples": "pass data=ClientData(train, ids=...) instead of a number of samples",
    "holdout_samples": "leave it out: the session counts data.holdout and evaluates on it",
    "parts": "leave it out: job.batches() and job.indices are the samples of each job",
    "routines": "leave it out: the session declines what a loop of ordinary descent cannot do",
    "manifest": "pass model=, the torch module that the loop trains",
    "token": "pass options=ConnectOptions(token_file=...), the path of the file with the token",
    "unlabeled_samples": "run `puf-client run --distiller` for data without labels",
}


@dataclass(frozen=True, kw_only=True)
class ConnectOptions:
    """What few loops set: credentials other than a certificate, the device, memberships, and traces."""

    token_file: str | Path | None = None
    """A file with a token in place of a certificate."""
    tls_server_name: str = ""
    """The name in the server's certificate."""
    device: str = "auto"
    """auto, cpu, cuda or cuda:N."""
    plugin_version: str = ""
    """The version of the user's code, if the federation requires one."""
    added_samples: int = 0
    """Declares new samples after a request for samples."""
    rejoin: bool = False
    """Asks for a new membership after this client was forgotten and readmitted."""
    patience: float = 30.0
    """Seconds to wait for the first answer of the server."""
    trace: str = ""
    """A collector for OpenTelemetry traces, such as http://127.0.0.1:4318."""


_OPTIONS = {field.name for field in fields(ConnectOptions)}


def connect(
    server: str,
    *,
    name: str = "",
    data: ClientData | None = None,
    model: nn.Module | None = None,
    task: Task | str = "",
    tls: str | Path | None = None,
    state: str | Path | None = None,
    options: ConnectOptions | None = None,
    **removed: Never,
) -> Session:
    """Joins the federation at `server` (HOST:PORT) and returns the session. `name`, `data` and `model` are required.

    `model` is the module that the loop trains; its tensors must be those of the federation's model. Parameters with
    `requires_grad=False` are never sent, and must have the operator's values. `task` scores
    evaluations: an object with the methods of `Task`, or the name of a built-in one; by default the federation's, if it
    is built in. `tls` is the directory with ca.crt, and with NAME.crt and NAME.key of this client, as `puf-client enroll`
    makes it; without it the connection is not encrypted. `state` is the directory for data that must survive a run, by
    default the user's. `options` has what few loops need.
    """
    data, model = _required(removed, data, model)
    options = options or ConnectOptions()
    if not name:
        raise UsageError("a client needs a name: connect(..., name=...)")
    start_tracing("puf-client", options.trace)
    transport = dial(_credentials(name, tls, options), server=server, name=name, patience=options.patience)
    try:
        description = transport.describe()
        directory = StateDirectory.of(description.federation_id, name, Path(state) if state is not None else None)
        directory.check_server_key(description.server_key)
        refuse_forgotten(transport, description, directory, rejoin=options.rejoin)
        trainer = _trainer(description, data, model, task, options)
        return _joined(trainer, directory, transport, description, options)
    except BaseException:
        transport.close()
        raise


def _joined(
    trainer: Trainer,
    directory: StateDirectory,
    transport: Transport,
    description: pb.DescribeReply,
    options: ConnectOptions,
) -> Session:
    trainer.check_fit()
    worker = Worker(trainer, directory, transport, Display())
    membership = worker.join(description, rejoin=options.rejoin, added_samples=options.added_samples, routines=ROUTINES)
    if options.rejoin:
        directory.clear_forgotten()
    return Session(worker, membership, directory, transport)


def _trainer(
    description: pb.DescribeReply, data: ClientData, model: nn.Module, task: Task | str, options: ConnectOptions
) -> Trainer:
    return Trainer(
        data=data,
        model=model,
        base_digest=require_same_model(model, description),
        manifest=Manifest.from_pb(description.manifest),
        task=_task(task, description.task),
        choice=choose(options.device),
        recipe=description.recipe,
        plugin_version=options.plugin_version,
        fresh=_no_other_seed,
    )


def _task(task: Task | str, federation: str) -> Task:
    """Returns the task. A name from the network is never imported."""
    if not isinstance(task, str):
        return task
    if not task and federation not in BUILT_IN:
        raise UsageError(
            f"the federation's task {federation!r} is not built in: pass connect(..., task=...), an object with loss, "
            "sample_losses, sample_scores and confidences"
        )
    return task_named(task or federation)


def _no_other_seed(seed: int) -> nn.Module:
    raise UsageError("a training loop cannot build its model with another seed")


def _credentials(name: str, tls: str | Path | None, options: ConnectOptions) -> Secured:
    token = Path(options.token_file) if options.token_file is not None else None
    server_name = options.tls_server_name
    if tls is None:
        return Secured(tls_server_name=server_name, token_file=token)
    directory = Path(tls).expanduser()
    certificate, key = directory / f"{name}.crt", directory / f"{name}.key"
    needed: Sequence[Path] = (directory / "ca.crt", *((certificate, key) if token is None else ()))
    missing = [path.name for path in needed if not path.is_file()]
    if missing:
        raise UsageError(
            f"{directory} has no {' and no '.join(missing)}: `puf-client enroll --name {name} --dir {directory}` makes the "
            f"key, and the operator sends {name}.crt and ca.crt"
        )
    own = (certificate, key) if certificate.is_file() and key.is_file() else (None, None)
    return Secured(tls_ca=needed[0], tls_cert=own[0], tls_key=own[1], tls_server_name=server_name, token_file=token)


def _required(removed: dict[str, Never], data: object, model: object) -> tuple[ClientData, nn.Module]:
    """Returns data and model. Raises for calls of version 0.1, with what to change."""
    for name in removed:
        moved = f"pass options=ConnectOptions({name}=...)" if name in _OPTIONS else "leave it out"
        raise UsageError(f"connect no longer takes {name}: {_REMOVED.get(name, moved)}")
    if not isinstance(data, ClientData):
        raise UsageError("connect needs data=ClientData(train, holdout=..., ids=...): the session chooses the samples")
    if not isinstance(model, nn.Module):
        raise UsageError("connect needs model=, the torch module that the loop trains: the session loads its weights")
    return data, model
