"""A server under attack, and the conditions that must hold afterwards."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from random import Random
from typing import Any

import psutil
from google.protobuf.message_factory import GetMessageClass

from puf_common.network.tls import ClientTls, ServerTls
from puf_common.v1 import federation_pb2 as fed
from puf_server.core.config import FederationConfig
from puf_server.runtime.server import Server
from puf_server.storage.state_store import Store
from tests.fuzz.attacks import METHODS, message, mutated, raw_bytes, stream, throw
from tests.grpc.raw import Raw
from tests.running import make_state, metadata, running, tiny_config

__all__ = ["Rig", "fuzz"]

# Allowed answers to hostile bytes. UNKNOWN and INTERNAL would be bugs; UNAVAILABLE would be a dead server.
ANSWERS = frozenset(
    {
        "OK", "INVALID_ARGUMENT", "UNAUTHENTICATED", "PERMISSION_DENIED", "NOT_FOUND", "ALREADY_EXISTS",
        "FAILED_PRECONDITION", "RESOURCE_EXHAUSTED", "DATA_LOSS",
    }
)  # fmt: skip
# A long poll, or a stream that was reset.
PATIENT = frozenset({"DEADLINE_EXCEEDED"})


class Tracebacks(logging.Handler):
    """Collects log records about an error inside the server, from any logger."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.found: list[str] = []
        self.longest = 0

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        self.longest = max(self.longest, len(text))
        if record.exc_info or "Traceback" in text or (record.levelno >= logging.ERROR and "puf" in record.name):
            self.found.append(f"{record.name}: {text} {record.exc_info}")


def config(**limits: float) -> FederationConfig:
    # No rate limit here: other tests cover it.
    usual: dict[str, float] = {"writes_per_minute": 1e9, "tickets_per_hour": 1_000_000_000, "stall_seconds": 2.0}
    return tiny_config(plan={"min_clients": 3, "rounds": 1000, "absent_seconds": 3600.0}, limits={**usual, **limits})


class Rig:
    def __init__(self, server: Server, client: Callable[[str], Raw]) -> None:
        self.server = server
        self.anna, self.bert, self.mallory = (client(name) for name in ("anna", "bert", "mallory"))
        self.answers: Counter[str] = Counter()
        for client_ in (self.anna, self.bert, self.mallory):
            client_.join()
        self.work = self.mallory.wait().train

    def digest(self) -> str:
        state = self.server.engine.state
        return state.models[state.version].digest

    def messages(self, rng: Random, cases: int, *, stranger: bool = False) -> None:
        """Calls any method with random fields, or with damaged messages."""
        sent_as: Any = () if stranger else metadata("mallory")
        for _ in range(cases):
            method = rng.choice(METHODS)
            kind = GetMessageClass(method.input_type)
            if method.name == "WaitForWork":
                data = fed.WaitForWorkRequest(session=rng.choice(("", "1.x", "9" * 50)), timeout_seconds=0)
                payload = data.SerializeToString()
            else:
                payload = message(rng, kind).SerializeToString()
            if rng.random() < 0.4:
                payload = mutated(rng, payload)
            sent = [payload] if method.client_streaming else payload
            self._answered(throw(self.mallory.channel, method, sent, sent_as, 5.0))

    def uploads(self, rng: Random, cases: int) -> None:
        """Sends an expected update with faults. If it is valid by chance, it may be accepted."""
        method = next(m for m in METHODS if m.name == "SubmitUpdate")
        for _ in range(cases):
            sent = stream(rng, self.mallory, self.work)
            self._answered(throw(self.mallory.channel, method, sent, metadata("mallory")))

    def _answered(self, answer: str) -> None:
        assert answer in ANSWERS | PATIENT, answer
        self.answers[answer] += 1

    def unharmed(self) -> None:
        """The model is unchanged, no file is left over, and the other clients continue their round."""
        state = self.server.engine.state
        directory = self.server.engine.store.directory
        left = [p.name for p in (directory / "spool").iterdir() if ".mallory." not in p.name]
        assert not left, left
        assert len(list((directory / "spool").iterdir())) <= 1
        assert state.round is not None
        for client in (self.anna, self.bert):
            work = client.wait(5.0).train
            assert work.key.round == state.round.number
            client.submit(work)


def fuzz(directory: Path, seed: int, cases: int, *, tls: ServerTls | None = None, as_: Any = None) -> Counter[str]:
    """Attacks one federation with `cases` attacks of each kind. Returns the answers by status."""
    log = Tracebacks()
    root = logging.getLogger()
    root.addHandler(log)
    rng = Random(seed)
    me = psutil.Process()
    try:
        with running(make_state(directory, config()), tls) as server, ExitStack() as stack:

            def client(name: str) -> Raw:
                shown: ClientTls | None = as_(name) if as_ else None
                return stack.enter_context(Raw(server.port, name, shown))

            rig = Rig(server, client)
            before = rig.digest()
            rig.uploads(rng, cases // 5)
            memory, disk = me.memory_info().rss, _size(directory)
            rig.uploads(rng, cases)
            rig.messages(rng, cases)
            if as_ is None:
                rig.messages(rng, cases // 4, stranger=True)
            for _ in range(cases // 4):
                raw_bytes(rng, server.port, tls=tls is not None)
            assert rig.digest() == before
            # A ticket of mallory and its entries in the audit log, but none of the sent bytes.
            assert _size(directory) - disk < 4000 * cases
            assert me.memory_info().rss - memory < 150e6
            rig.unharmed()
            answers = rig.answers
        assert not log.found, log.found[:3]
        assert log.longest < 3000
    finally:
        root.removeHandler(log)
    store = Store.open(directory)
    store.load()
    store.close()
    return answers


def _size(directory: Path) -> int:
    return sum(p.stat().st_size for p in directory.rglob("*") if p.is_file())
