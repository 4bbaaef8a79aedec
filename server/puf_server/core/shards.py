"""Shards that clients lease: parts of a split data set that the server distributes.

A lease has no end. A name that comes back gets the same samples. The samples of a forgotten name are not trained on
until the operator releases its shard.
"""

from __future__ import annotations

from dataclasses import replace

from puf_common.errors import Forgotten, NotFound, NotNow, TooMuch
from puf_server.core.config import FederationConfig
from puf_server.core.state.members import MemberStatus
from puf_server.core.state.state import State


def lease(state: State, config: FederationConfig, name: str, wish: int | None, now: float) -> tuple[State, int]:
    """The shard of this name: its lease, else the wished one if free, else the first free one."""
    if not config.plan.shards:
        raise NotNow("this federation leases no shards (plan.shards is 0): the client must name its shard")
    if name in state.leases:
        return state, state.leases[name]
    member = state.members.get(name)
    if member is not None and member.status is MemberStatus.FORGOTTEN:
        raise Forgotten(f"{name} was forgotten by this federation and gets no shard", client=name)
    taken = set(state.leases.values())
    free = [shard for shard in range(config.plan.shards) if shard not in taken]
    if not free:
        raise TooMuch(
            f"all {config.plan.shards} shards are leased; the operator can release the shard of a forgotten client",
            shards=config.plan.shards,
        )
    shard = wish if wish in free else free[0]
    state = replace(state, leases={**state.leases, name: shard})
    return state.note("shard.leased", now, client=name, shard=shard), shard


def release(state: State, name: str, now: float) -> tuple[State, int]:
    """Frees the shard of a name that is no member: another client may lease it and train on its samples."""
    if name not in state.leases:
        raise NotFound(f"{name} leases no shard", client=name)
    member = state.members.get(name)
    if member is not None and member.status is MemberStatus.ACTIVE:
        raise NotNow(f"{name} is a member and trains on its shard; it must be forgotten first", client=name)
    shard = state.leases[name]
    state = replace(state, leases={n: s for n, s in state.leases.items() if n != name})
    return state.note("shard.released", now, client=name, shard=shard), shard
