"""`connect`: joins a federation, for `puf-client run` and for training loops in the user's code."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import TYPE_CHECKING

from puf_client.session.session import Session
from puf_client.transport.base import Transport
from puf_client.transport.grpc import GrpcTransport
from puf_client.transport.retry import RetryPolicy
from puf_common.errors import UsageError
from puf_common.tensors.manifest import Manifest
from puf_common.v1 import federation_pb2 as pb
from puf_common.version import VERSION

if TYPE_CHECKING:
    from puf_common.network.tls import ClientTls


def connect(
    server: str | Transport,
    *,
    samples: int | Callable[[], int],
    name: str = "",
    holdout_samples: int = 0,
    unlabeled_samples: int = 0,
    manifest: Manifest | None = None,
    description: pb.DescribeReply | None = None,
    plugin_version: str = "",
    device: str = "cpu",
    adapts: bool = False,
    rejoin: bool = False,
    only_if_no_worker: bool = False,
    heartbeats: bool = True,
    wait_seconds: float = 20.0,
    patience: float = 30.0,
    tls: ClientTls | None = None,
    token: Callable[[], str] | None = None,
) -> Session:
    """Joins a federation as a worker and returns the session. `server` is HOST:PORT or a transport.

    `samples` is the number of training samples, or a function that returns it and is called before every assignment.
    `unlabeled_samples` is for a client that distills on public data and does not train. `manifest` describes the local
    model: `connect` raises before joining if it differs from the federation's. Without it there is no comparison.
    `adapts` says that the worker can run the routine "dose".
    """
    owned = isinstance(server, str)
    if isinstance(server, str):
        if not name:
            raise UsageError("a client needs a name")
        server = GrpcTransport(server, name, tls=tls, token=token, retry=RetryPolicy(patience))
    try:
        return Session(
            server,
            description or server.describe(),
            manifest,
            pb.JoinRequest(
                instance=secrets.token_hex(16),
                holdout_samples=holdout_samples,
                unlabeled_samples=unlabeled_samples,
                plugin_version=plugin_version,
                client_version=VERSION,
                device=device,
                adapts=adapts,
                rejoin=rejoin,
                only_if_no_worker=only_if_no_worker,
            ),
            count=samples if callable(samples) else lambda: samples,
            heartbeats=heartbeats,
            wait_seconds=wait_seconds,
            owns_transport=owned,
        )
    except BaseException:
        if owned:
            server.close()
        raise
