"""`connect`: joins a federation as a worker. `puf_client.connect` and `puf-client run` build on it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from puf_client.machine import THIS_MACHINE, Machine
from puf_client.session.reconcile import require_exclusions
from puf_client.session.samples import KnownSamples, LoopSupport
from puf_client.session.session import Session
from puf_client.state.directory import StateDirectory
from puf_client.transport.base import Transport
from puf_client.transport.grpc import GrpcTransport
from puf_client.transport.retry import RetryPolicy
from puf_common.errors import UsageError
from puf_common.tensors.manifest import Manifest
from puf_common.v1 import federation_pb2 as pb

if TYPE_CHECKING:
    from puf_common.network.tls import ClientTls


class HasIds(Protocol):
    """Data with one id per training sample, for example `puf_client.ClientData`."""

    @property
    def ids(self) -> Sequence[str]: ...


def connect(
    server: str | Transport,
    *,
    data: HasIds | Sequence[str] | KnownSamples | None = None,
    samples: int | Callable[[], int] | None = None,
    parts: Iterable[str] = ("main",),
    routines: Iterable[str] = ("train",),
    state: Path | None = None,
    added_samples: int = 0,
    name: str = "",
    holdout_samples: int = 0,
    unlabeled_samples: int = 0,
    manifest: Manifest | None = None,
    base_digest: bytes = b"",
    description: pb.DescribeReply | None = None,
    plugin_version: str = "",
    device: str = "cpu",
    rejoin: bool = False,
    only_if_no_worker: bool = False,
    heartbeats: bool = True,
    wait_seconds: float = 20.0,
    patience: float = 30.0,
    tls: ClientTls | None = None,
    token: Callable[[], str] | None = None,
    machine: Machine = THIS_MACHINE,
) -> Session:
    """Joins a federation as a worker and returns the session. `server` is HOST:PORT or a transport.

    `data` has the ids of the training samples. The session then keeps forgotten samples out, states which ones to use and
    records them under `state`. Without it, `samples` is their number. `manifest` and `base_digest` must be the federation's.
    """
    request = pb.JoinRequest(
        holdout_samples=holdout_samples,
        unlabeled_samples=unlabeled_samples,
        plugin_version=plugin_version,
        device=device,
        rejoin=rejoin,
        only_if_no_worker=only_if_no_worker,
        added_samples=added_samples,
        adapts="dose" in routines,
        base_digest=base_digest,
    )
    transport = _dialled(server, name, tls, token, patience) if isinstance(server, str) else server
    try:
        description = _described(transport, description, manifest)
        known = _known(data, transport, description, state)
        return Session(
            transport,
            description,
            request,
            support=LoopSupport(_count(samples, known, request), frozenset(parts), frozenset(routines), known),
            heartbeats=heartbeats,
            wait_seconds=wait_seconds,
            owns_transport=transport is not server,
            machine=machine,
        )
    except BaseException:
        if transport is not server:
            transport.close()
        raise


def _dialled(
    server: str, name: str, tls: ClientTls | None, token: Callable[[], str] | None, patience: float
) -> Transport:
    if not name:
        raise UsageError("a client needs a name")
    return GrpcTransport(server, name, tls=tls, token=token, retry=RetryPolicy(patience))


def _described(transport: Transport, description: pb.DescribeReply | None, own: Manifest | None) -> pb.DescribeReply:
    """Returns the federation's description. Raises if its model is not the client's own."""
    description = description or transport.describe()
    if own is not None:
        Manifest.from_pb(description.manifest).require(own.fingerprint, "the local model")
    return description


def _known(
    data: HasIds | Sequence[str] | KnownSamples | None,
    transport: Transport,
    description: pb.DescribeReply,
    root: Path | None,
) -> KnownSamples | None:
    """Returns the client's samples with its state directory. Raises if that directory does not know all exclusions."""
    if data is None:
        return None
    if not isinstance(data, KnownSamples):
        ids = data.ids if hasattr(data, "ids") else data
        data = KnownSamples(ids, StateDirectory.of(description.federation_id, transport.name, root), transport)
    data.state.check_server_key(description.server_key)
    require_exclusions(data.state, transport.list_my_tickets().tickets)
    return data


def _count(
    samples: int | Callable[[], int] | None, known: KnownSamples | None, request: pb.JoinRequest
) -> Callable[[], int]:
    """Returns the function that counts the training samples now."""
    if (known is None) == (samples is None):
        raise UsageError("connect needs data with the ids of the samples, or else the number of samples")
    if known is not None:
        # A client with unlabeled samples does not train.
        return known.count if not request.unlabeled_samples else lambda: 0
    return samples if callable(samples) else lambda: samples or 0
