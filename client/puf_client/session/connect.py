"""`connect`: joins a federation as a worker. `puf_client.connect` and `puf-client run` build on it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from puf_client.session.reconcile import agree
from puf_client.session.samples import KnownSamples, LoopSupport
from puf_client.session.session import Session
from puf_client.session.settings import HasIds, Joining, Offer, Running
from puf_client.state.directory import StateDirectory
from puf_client.transport.base import Transport
from puf_client.transport.grpc import GrpcTransport
from puf_common.errors import UsageError
from puf_common.tensors.manifest import Manifest
from puf_common.v1 import federation_pb2 as pb

if TYPE_CHECKING:
    from puf_common.network.tls import ClientTls


def connect(
    server: str | Transport,
    offer: Offer,
    *,
    name: str = "",
    tls: ClientTls | None = None,
    state: Path | None = None,
    joining: Joining | None = None,
    running: Running | None = None,
    description: pb.DescribeReply | None = None,
) -> Session:
    """Joins a federation as a worker and returns the session. `server` is a transport, or HOST:PORT with `name` and `tls`.

    `state` is the directory for the record of the samples, if the offer has ids and no directory of its own.
    """
    joining = joining or Joining()
    request = pb.JoinRequest(
        holdout_samples=offer.holdout_samples,
        unlabeled_samples=offer.unlabeled_samples,
        plugin_version=offer.plugin_version,
        device=offer.device,
        rejoin=joining.rejoin,
        only_if_no_worker=joining.only_if_no_worker,
        added_samples=joining.added_samples,
        adapts="dose" in offer.routines,
        base_digest=offer.base_digest,
    )
    transport = _dialled(server, name, tls) if isinstance(server, str) else server
    try:
        description = description or transport.describe()
        manifest = _manifest(description, offer.manifest)
        known = _known(offer.data, transport, description, state)
        support = LoopSupport(
            _count(offer.samples, known, request), frozenset(offer.parts), frozenset(offer.routines), known
        )
        return Session(
            transport,
            description,
            manifest,
            request,
            support,
            running or Running(),
            owns_transport=transport is not server,
        )
    except BaseException:
        if transport is not server:
            transport.close()
        raise


def _dialled(server: str, name: str, tls: ClientTls | None) -> Transport:
    if not name:
        raise UsageError("a client needs a name")
    return GrpcTransport(server, name, tls=tls)


def _manifest(description: pb.DescribeReply, own: Manifest | None) -> Manifest:
    """Returns the manifest of the federation's model. Raises if it is not the client's own."""
    manifest = Manifest.from_pb(description.manifest)
    if own is None:
        return manifest
    manifest.require(own.fingerprint, "the local model")
    # Sessions in one process share it, and what it computes once.
    return own


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
    agree(data.state, list(transport.list_my_tickets().tickets))
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
