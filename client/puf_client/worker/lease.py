"""`--shard lease`: the server says which part of the data is this client's, and always says the same."""

from __future__ import annotations

from typing import TypeVar

from puf_client.cli.options import LocalOptions
from puf_client.state.directory import StateDir
from puf_client.transport.grpc import Transport
from puf_common.errors import Mismatch
from puf_common.logging import get_logger
from puf_common.v1 import federation_pb2 as pb

__all__ = ["leased"]

T = TypeVar("T", bound=LocalOptions)

log = get_logger("puf_client.worker.lease")


def leased(options: T, transport: Transport, state: StateDir, *, anew: bool = False) -> T:
    """The options with a shard of their own; unchanged where they had one.

    A server restored from an old backup may not know of the lease. It is asked for the shard that this client had, and
    where somebody else has that now the client stops: other samples than it announced, asked to forget or has forgotten
    would be trained. `anew` is for a new membership, which begins with whatever it is given.
    """
    if not options.leases:
        return options
    had = None if anew else state.shard
    reply = transport.lease_shard(pb.LeaseShardRequest(wish=options.wish if had is None else had[0]))
    if had is not None and had != (reply.shard, reply.shards):
        raise Mismatch(
            f"{transport.name} has worked on shard {had[0]}/{had[1]}, the server leases it {reply.shard}/{reply.shards}: its "
            "state is older than the lease. The operator frees the right one with `puf-server clients release`",
            theirs=f"{reply.shard}/{reply.shards}",
            ours=f"{had[0]}/{had[1]}",
        )
    state.remember_shard(reply.shard, reply.shards)
    log.info("shard leased", client=transport.name, shard=reply.shard, shards=reply.shards)
    return options.model_copy(update={"shard": f"{reply.shard}/{reply.shards}"})
