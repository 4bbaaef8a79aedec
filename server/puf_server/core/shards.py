"""Which part of a split data set a client trains on, where it asks the server instead of being told.

A lease is for good: a name that comes back finds its samples, and those of a name that was forgotten stay untrained until
the operator gives them to somebody else.
"""

from __future__ import annotations

from dataclasses import replace

from puf_common.errors import Forgotten, NotFound, NotNow, TooMuch
from puf_server.core.config import FederationConfig
from puf_server.core.state.members import MemberStatus
from puf_server.core.state.state import State

__all__ = ["lease", "release"]


def lease(state: State, config: FederationConfig, name: str, wish: int | None, now: float) -> tuple[State, int]:
    """The name's shard: the one it has, else the one it wishes for if that is free, else the first that is."""
    if not config.plan.shards:
        raise NotNow("this federation leases no shards (plan.shards is 0): start the client with --shard I/N")
    if name in state.leases:
        return state, state.leases[name]
    member = state.members.get(name)
    if member is not None and member.status is MemberStatus.FORGOTTEN:
        raise Forgotten(f"{name} was forgotten by this federation and gets no shard", client=name)
    taken = set(state.leases.values())
    free = [shard for shard in range(config.plan.shards) if shard not in taken]
    if not free:
        raise TooMuch(
            f"all {config.plan.shards} shards are leased; the operator frees one of a client that is gone for good with "
            "`puf-server clients release NAME`",
            shards=config.plan.shards,
        )
    shard = wish if wish in free else free[0]
    state = replace(state, leases={**state.leases, name: shard})
    return state.note("shard.leased", now, client=name, shard=shard), shard


def release(state: State, name: str, now: float) -> tuple[State, int]:
    """The operator's word that somebody else may have the shard, and train on its samples again."""
    if name not in state.leases:
        raise NotFound(f"{name} leases no shard", client=name)
    member = state.members.get(name)
    if member is not None and member.status is MemberStatus.ACTIVE:
        raise NotNow(f"{name} is a member and trains on its shard; it has to be forgotten first", client=name)
    shard = state.leases[name]
    state = replace(state, leases={n: s for n, s in state.leases.items() if n != name})
    return state.note("shard.released", now, client=name, shard=shard), shard
