"""`--shard lease`: the server leases a shard of the data to this client, always the same one."""

from __future__ import annotations

from typing import TypeVar

from puf_client.options import LocalOptions
from puf_client.state.directory import StateDirectory
from puf_client.transport.base import Transport
from puf_common.errors import Mismatch
from puf_common.logging import get_logger
from puf_common.v1 import federation_pb2 as pb

T = TypeVar("T", bound=LocalOptions)

log = get_logger("puf_client.worker.lease")


def leased(options: T, transport: Transport, state: StateDirectory, *, new_membership: bool = False) -> T:
    """Returns the options with the leased shard; unchanged if they name a shard.

    A server that was restored from an old backup may not know the lease. The client therefore requests the shard that it
    had, and raises `Mismatch` if it gets another one: it would train on samples that it did not announce, or that are
    forgotten. A new membership accepts any shard.
    """
    if not options.leases:
        return options
    had = None if new_membership else state.shard
    reply = transport.lease_shard(pb.LeaseShardRequest(wish=options.wish if had is None else had[0]))
    if had is not None and had != (reply.shard, reply.shards):
        raise Mismatch(
            f"{transport.name} has worked on shard {had[0]}/{had[1]}, the server leases it {reply.shard}/{reply.shards}: "
            "the server's state is older than the lease. The operator frees the right shard with "
            "`puf-server clients release`",
            theirs=f"{reply.shard}/{reply.shards}",
            ours=f"{had[0]}/{had[1]}",
        )
    state.write_shard(reply.shard, reply.shards)
    log.info("shard leased", client=transport.name, shard=reply.shard, shards=reply.shards)
    return options.model_copy(update={"shard": f"{reply.shard}/{reply.shards}"})
