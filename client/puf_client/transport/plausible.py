"""Checks of a server's answers before the client uses them.

The values come from the network. A faulty or hostile server must not make a client fail without a clear message, compute
without end, or use all memory. The bounds are far above what a federation uses.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TypeVar

from google.protobuf.message import Message

from puf_common.errors import TransferCorrupted
from puf_common.v1 import federation_pb2 as pb
from puf_common.v1 import tensors_pb2, tickets_pb2

__all__ = ["check_description", "check_join", "check_work", "printable"]

_MOST_THREADS = 1024
_MOST_BATCH = 1_000_000
_MOST_EPOCHS = 1_000_000.0
_MOST_SCALE = 1e9
_MOST_OPTION = 1e12
_HEARTBEATS = (0.01, 86_400.0)
_MOST_ID = 200


Answer = TypeVar("Answer", bound=Message)


def printable(answer: Answer) -> Answer:
    """Returns the answer without control characters in its texts: they must not control a terminal."""
    for field, value in answer.ListFields():
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            continue
        if field.type == field.TYPE_MESSAGE:
            for part in value if field.is_repeated else [value]:
                printable(part)
        elif field.type == field.TYPE_STRING and field.is_repeated:
            value[:] = [_plain(text) for text in value]
        elif field.type == field.TYPE_STRING and not value.isprintable():
            setattr(answer, field.name, _plain(value))
    return answer


def _plain(text: str) -> str:
    return text if text.isprintable() else "".join(c if c.isprintable() or c == "\n" else "?" for c in text)


def check_description(reply: pb.DescribeReply) -> pb.DescribeReply:
    """Returns the description. Raises if this client could not use it."""
    recipe = reply.recipe
    _refuse(
        {
            f"the federation's id has {len(reply.federation_id)} characters": not 0
            < len(reply.federation_id)
            <= _MOST_ID,
            f"the recipe asks for {recipe.threads} threads": recipe.threads > _MOST_THREADS,
            f"the recipe's batch size is {recipe.batch_size}": not 0 < recipe.batch_size <= _MOST_BATCH,
            f"the recipe's momentum is {recipe.momentum:g}": not 0 <= recipe.momentum <= 1,
            f"the recipe's weight decay is {recipe.weight_decay:g}": not 0 <= recipe.weight_decay < math.inf,
            f"encoding {reply.update_encoding} of updates is unknown": (
                reply.update_encoding not in tensors_pb2.Encoding.values()
            ),
        }
    )
    return reply


def check_join(reply: pb.JoinReply) -> pb.JoinReply:
    """Returns the answer to a join. Zero seconds between heartbeats mean the client's own value."""
    seconds = reply.heartbeat_seconds
    least, most = _HEARTBEATS
    _refuse({f"{seconds:g} s between heartbeats": seconds != 0 and not least <= seconds <= most})
    return reply


def check_work(reply: pb.WaitForWorkReply) -> pb.WaitForWorkReply:
    """Returns the work. An unknown reason to leave, of a newer server, becomes an unspecified one."""
    if reply.HasField("train"):
        _refuse(dict(_faults(reply.train)))
    if reply.HasField("leave") and reply.leave.reason not in pb.LeaveOrder.Reason.values():
        reply.leave.reason = pb.LeaveOrder.REASON_UNSPECIFIED
    return reply


def _faults(work: pb.TrainWork) -> Iterator[tuple[str, bool]]:
    yield f"the learning rate is {work.lr:g}", not 0 < work.lr < math.inf
    yield f"{work.epochs:g} epochs", not 0 < work.epochs <= _MOST_EPOCHS
    yield f"the scale is {work.scale:g}", not abs(work.scale) <= _MOST_SCALE
    yield "the update would be negated without a request to be forgotten", work.scale < 0 and not work.ticket_id
    yield f"part {work.key.part} of the samples is unknown", work.key.part not in pb.Part.values() or not work.key.part
    yield f"flip {work.flip} is unknown", work.flip not in tickets_pb2.Flip.values()
    for name, value in work.options.items():
        # Not a number means that the server has no value.
        yield f"option {name[:40]} is {value:g}", abs(value) > _MOST_OPTION


def _refuse(faults: dict[str, bool]) -> None:
    found = [what for what, wrong in faults.items() if wrong]
    if found:
        raise TransferCorrupted(
            f"the server's answer cannot be right: {found[0]}; check --server, or ask the server's operator"
        )
