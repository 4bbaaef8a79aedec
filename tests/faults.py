"""A worker behind a connection that breaks and stalls in every round. Each round adds exactly one to every weight.

A lost, repeated or truncated transfer changes the sum.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

import numpy as np

from puf_client.session.assignment import Assignment
from puf_client.session.connect import connect
from puf_client.session.session import Session
from puf_client.session.settings import Offer, Running
from puf_client.transport.grpc import GrpcTransport
from puf_client.transport.retry import RetryPolicy
from puf_common.tensors.chunks import CHUNK_BYTES
from puf_common.tensors.manifest import MODEL, UPDATE, Manifest, TensorSpec
from puf_common.v1 import federation_pb2 as pb
from puf_server.core.config import FederationConfig, Forgetting, Plan, Recipe
from tests.proxy import Direction, Proxy, Strike, proxied
from tests.running import Federation

__all__ = ["LARGE", "Line", "config", "large_line"]

# As large as a ResNet-18 for a hundred classes: 45 MB, 43 chunks.
LARGE = Manifest((TensorSpec("w", "f32", (11_220_132,)), TensorSpec("seen", "i64", (), "buffer")))


def config() -> FederationConfig:
    plan = Plan(rounds=1000, min_clients=1, heartbeat_seconds=1.0, absent_seconds=60, evaluate_every=0, keep_models=1)
    forgetting = Forgetting(max_recovery_rounds=0, blind_recovery_rounds=0)
    return FederationConfig(id="f-1", model="none", recipe=Recipe(), plan=plan, forgetting=forgetting)


class _Counting(GrpcTransport):
    """Counts uploads that were resumed."""

    resumed = 0

    def _received(self, header: pb.UpdateHeader) -> int:
        offset = super()._received(header)
        self.resumed += offset > 0
        return offset


class Line:
    """A worker behind the proxy, and its progress."""

    def __init__(self, federation: Federation, proxy: Proxy, transfer_seconds: float = 30.0) -> None:
        self.federation = federation
        self.proxy = proxy
        retry = RetryPolicy(first_pause=0.02, longest_pause=0.2)
        self.transport = _Counting(f"127.0.0.1:{proxy.port}", "a", retry=retry)
        self.transport.transfer_seconds = transfer_seconds
        self.session: Session = connect(
            self.transport, Offer(samples=10, manifest=federation.manifest), running=Running(heartbeats=False)
        )
        self.rounds = 0
        # Bytes of the last round's transfers, framing included.
        self.sent = self.received = 0

    def round(self, down: Strike | None = None, up: Strike | None = None) -> None:
        """One round with at most one fault in each direction."""
        self.proxy.arm(down)
        work = next(iter(self.session))
        assert isinstance(work, Assignment)
        assert (work.weights["w"] == self.rounds).all()
        self.received = self.proxy.counted["down"]
        self.proxy.arm(up)
        assert work.submit({"w": work.weights["w"] + np.float32(1), "seen": np.int64(work.round)})
        self.sent = self.proxy.counted["up"]
        self.rounds += 1
        assert work.round == self.rounds

    def lost(self) -> float:
        """How many rounds the newest model has too few or too many. The next round stays open."""
        self.proxy.arm(None)
        work = next(iter(self.session))
        assert isinstance(work, Assignment)
        w = work.weights["w"]
        assert (w == w[0]).all()
        return abs(self.rounds - float(w[0]))

    def close(self) -> None:
        self.proxy.arm(None)
        self.session.close()
        self.transport.close()

    def strike_at_random(self, random: Random, rounds: int) -> None:
        """A fault in each direction of every round: cuts and stalls, half of them at the end of a chunk."""
        sizes: dict[Direction, int] = {"down": self.received, "up": self.sent}
        payloads: dict[Direction, int] = {
            "down": self.federation.manifest.nbytes(MODEL),
            "up": self.federation.manifest.nbytes(UPDATE),
        }

        def place(direction: Direction) -> int:
            size, chunks = sizes[direction], payloads[direction] // CHUNK_BYTES
            if random.random() < 0.5:
                return random.randrange(size)
            # The framing is spread evenly over the tensors.
            return size * random.randint(1, chunks) * CHUNK_BYTES // payloads[direction] + random.choice((-1, 0, 1))

        def strike(direction: Direction) -> Strike:
            return Strike(direction, place(direction), random.choice(("cut", "stall")), 0.3)

        for _ in range(rounds):
            struck = self.proxy.struck
            self.round(strike("down"), strike("up"))
            assert self.proxy.struck == struck + 2


@contextmanager
def large_line(directory: Path) -> Iterator[Line]:
    """A worker with a large model, after one round without a fault."""
    federation = Federation(directory, config(), LARGE)
    try:
        with proxied(int(federation.target.rpartition(":")[2])) as proxy:
            line = Line(federation, proxy)
            try:
                line.round()
                yield line
            finally:
                line.close()
    finally:
        federation.stop()
