"""Time of transfers over a line of 100 Mbit/s with a round trip of 20 ms, for each encoding of updates and models.

A relay in this process is the line: namespaces with netem need root and a kernel module that many machines lack.
"""

from __future__ import annotations

import statistics
import time
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path

import numpy as np

from puf_client.session.assignment import Assignment
from puf_client.session.connect import connect
from puf_client.session.settings import Offer
from puf_client.transport.base import HeldModel
from puf_client.transport.grpc import GrpcTransport
from puf_common.tensors.chunks import Payload
from puf_common.tensors.manifest import UPDATE
from puf_common.v1 import federation_pb2 as fed
from puf_lab.bench.federation import PARAMETERS, init_state
from puf_lab.bench.relay import Line, Relay
from puf_lab.bench.report import Report, seconds, spread
from puf_lab.federations.processes import ServerProcess

_LINE = Line(rate=100e6 / 8, round_trip=0.02)
_CASES = {
    "full": ("full", "full"),
    "i8_updates_and_differences": ("i8", "difference"),
    "i8_updates_and_steps": ("i8", "i8"),
}
# Size of weights, and of a round's changes: as in the demo's models after some rounds.
_WEIGHT, _CHANGE = 0.05, 5e-4


class _Timed(GrpcTransport):
    """Notes how long each model takes, from the request to the verified bytes."""

    def __init__(self, target: str) -> None:
        super().__init__(target, "client-0")
        self.downloads: list[float] = []

    def fetch_model(self, version: int, held: HeldModel | None = None) -> tuple[fed.ModelHeader, Payload]:
        begun = time.perf_counter()
        fetched = super().fetch_model(version, held)
        self.downloads.append(time.perf_counter() - begun)
        return fetched


def line(report: Report, scratch: Path, repeats: int) -> None:
    """Seconds of one client's upload, encoding included, and of its download, decoding included."""
    up: dict[str, list[float]] = {}
    down: dict[str, list[float]] = {}
    nbytes: dict[str, float] = {}
    for name, (updates, steps) in _CASES.items():
        up[name], down[name], nbytes[name] = _rounds(scratch / name, updates, steps, max(2, repeats))
        report.console.print(f"  {name}: up {spread(up[name])} s, down {spread(down[name])} s")
    report.details["line_seconds"] = {"up": up, "down": down, "download_bytes_to_full": nbytes}
    upload, download = (statistics.median(times["full"]) for times in (up, down))
    note = f"{4 * PARAMETERS / 1e6:.0f} MB, 100 Mbit/s, 20 ms; full {spread(up['full'])} s"
    fast = statistics.median(up["i8_updates_and_steps"])
    report.at_most("upload_time_i8_to_full", fast / upload, 0.3, note=note)
    for name, goal in (("i8_updates_and_differences", 0.75), ("i8_updates_and_steps", 0.27)):
        kind = name.removeprefix("i8_updates_and_")
        report.at_most(f"download_bytes_with_{kind}_to_full", nbytes[name], goal, note="of the chunks")
        ratio = statistics.median(down[name]) / download
        # The goal of i8 updates for the whole time. Differences are also made and applied in this time.
        report.at_most(f"download_time_with_{kind}_to_full", ratio, 0.3 if kind == "steps" else None, note=note)


def _rounds(scratch: Path, updates: str, steps: str, repeats: int) -> tuple[list[float], list[float], float]:
    """Seconds of uploads and downloads, and the bytes of a download relative to those of the model."""
    chance = np.random.default_rng(1)
    weights = (_WEIGHT * chance.standard_normal(PARAMETERS, np.float32)).astype("<f4")
    flags = ["--plan-start-clients", "1", "--plan-min-clients", "1", "--plan-rounds", str(repeats + 1)]
    flags += ["--plan-keep-models", "2", "--plan-update-encoding", updates, "--plan-step-encoding", steps]
    state = init_state(scratch, PARAMETERS, *flags, weights=weights)
    uploads: list[float] = []
    with ExitStack() as stack:
        server = stack.enter_context(ServerProcess(state, scratch / "server.log"))
        relay = stack.enter_context(Relay(server.port, _LINE))
        transport = stack.enter_context(_Timed(relay.address))
        session = stack.enter_context(connect(transport, Offer(samples=1), name=transport.name))
        update = np.empty(session.manifest.nbytes(UPDATE) // 4, "<f4")
        received: list[int] = []
        for work in session:
            if isinstance(work, Assignment):
                received.append(transport.bytes_received)
                update[:] = _CHANGE * chance.standard_normal(PARAMETERS, np.float32)
                uploads.append(seconds(lambda work=work: work.submit(update.data.cast("B"))))  # type: ignore[misc]
            if len(uploads) > repeats:
                break
    taken = [after - before for before, after in pairwise(received)]
    # Before the first round a client holds no model.
    return uploads[1:], transport.downloads[1:], statistics.mean(taken) / (4 * PARAMETERS)
