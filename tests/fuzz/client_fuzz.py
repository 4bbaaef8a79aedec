"""Sessions of the shipped client against a server whose answers are mutated at random."""

from __future__ import annotations

import logging
from pathlib import Path
from random import Random
from typing import Any

from google.protobuf.message import Message

from puf_client.session.assignment import Assignment
from puf_client.session.connect import connect
from puf_client.session.settings import Offer, Running
from puf_client.transport.grpc import GrpcTransport
from puf_client.transport.retry import RetryPolicy
from puf_common.errors import PufError
from puf_common.v1 import federation_pb2 as fed
from tests.fuzz.attacks import message, mutated
from tests.fuzz.lying_server import Lie, lying
from tests.grpc.raw import update_bytes
from tests.running import TINY, make_state, running, tiny_config

__all__ = ["fuzz_client"]

_METHODS = [m.name for m in fed.DESCRIPTOR.services_by_name["Federation"].methods]
_QUICK = RetryPolicy(patience=0.2, first_pause=0.001, longest_pause=0.01)


class _Liar:
    """Mutates a share of the answers: single fields, whole messages or bytes."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self.told = 0

    def __call__(self, answer: Message) -> bytes | None:
        drawn = self._random.random()
        if drawn > 0.3:
            return None
        self.told += 1
        if drawn > 0.15:
            other = message(self._random, type(answer))
            fields: list[Any] = list(answer.DESCRIPTOR.fields)
            for field in self._random.sample(fields, min(len(fields), 2)):
                answer.ClearField(field.name)
                part = type(other).FromString(other.SerializeToString())
                for name in [f.name for f in fields if f is not field]:
                    part.ClearField(name)
                answer.MergeFrom(part)
            return None
        return mutated(self._random, answer.SerializeToString())


def fuzz_client(directory: Path, seed: int, cases: int) -> tuple[int, list[str]]:
    """Runs so many sessions. Returns the number of mutated answers, and what was no clear error."""
    random = Random(seed)
    liar = _Liar(random)
    lies = [Lie(name, liar) for name in _METHODS]
    wrong: list[str] = []
    # The client logs a line for every answer that it refuses.
    logging.disable(logging.CRITICAL)
    config = tiny_config(plan={"rounds": 1_000_000, "min_clients": 1}, limits={"writes_per_minute": 1e9})
    try:
        with running(make_state(directory, config)) as server, lying(server.port, *lies) as (port, calls):
            for case in range(cases):
                calls.clear()
                try:
                    _session(f"127.0.0.1:{port}", "anna")
                except PufError:
                    pass
                except Exception as error:
                    wrong.append(f"seed {seed}, session {case}: {error!r}")
    finally:
        logging.disable(logging.NOTSET)
    return liar.told, wrong


def _session(target: str, name: str) -> None:
    with GrpcTransport(target, name, retry=_QUICK) as transport:
        transport.transfer_seconds = 5.0
        session = connect(
            transport, Offer(samples=10, manifest=TINY), running=Running(heartbeats=False, wait_seconds=0.0)
        )
        try:
            for _ in range(4):
                work = session.step(0.0)
                session.beat()
                if isinstance(work, Assignment):
                    work.submit(update_bytes(0.001))
                elif work is not None:
                    work.report(5, 1.0, 2.0)
            for ticket in transport.list_my_tickets().tickets[:2]:
                transport.get_receipt(ticket.id)
        finally:
            session.close()
