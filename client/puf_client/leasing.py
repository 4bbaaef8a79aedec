"""`--shard lease`: the server says which part of the data is this client's, and always says the same."""

from __future__ import annotations

from typing import TypeVar

from puf_client.connection import Transport
from puf_client.options import LocalOptions
from puf_common.logging import get_logger
from puf_common.v1 import federation_pb2 as pb

__all__ = ["leased"]

T = TypeVar("T", bound=LocalOptions)

log = get_logger("puf_client.leasing")


def leased(options: T, transport: Transport) -> T:
    """The options with a shard of their own; unchanged where they had one."""
    if not options.leases:
        return options
    reply = transport.lease_shard(pb.LeaseShardRequest(wish=options.wish))
    log.info("shard leased", client=transport.name, shard=reply.shard, shards=reply.shards)
    return options.model_copy(update={"shard": f"{reply.shard}/{reply.shards}"})
