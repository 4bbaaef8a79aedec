"""A round without training: PUF, PUF over mTLS, and plain sockets, measured alternately."""

from __future__ import annotations

import os
import socket
import statistics
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

from puf_lab.bench.federation import PARAMETERS, Federation
from puf_lab.bench.raw_tcp import serve
from puf_lab.bench.relay import Relay
from puf_lab.bench.report import Report, seconds, spread
from puf_lab.federations.processes import Process

_CLIENTS = 10
# Rounds of one kind that are measured in a row: a federation also runs its rounds in a row, with warm caches.
_IN_A_ROW = 3


def transfer(report: Report, scratch: Path, repeats: int) -> None:
    moved = 2 * 4 * PARAMETERS * _CLIENTS
    report.console.print(
        f"{_CLIENTS} client processes fetch and submit {PARAMETERS:,} parameters: {moved / 1e6:.0f} MB a round"
    )
    tcp, hot, ours, mtls = (list[float]() for _ in range(4))
    with ExitStack() as stack:
        plain = stack.enter_context(Federation(scratch / "plain", _CLIENTS, PARAMETERS))
        secure = stack.enter_context(Federation(scratch / "mtls", _CLIENTS, PARAMETERS, mtls=True))
        plain.round()
        secure.round()
        computed = plain.cpu_seconds()
        for turn in range(repeats):
            tcp += [_raw_tcp(scratch) for _ in range(_IN_A_ROW)]
            ours += [plain.round() for _ in range(_IN_A_ROW)]
            mtls += [secure.round() for _ in range(_IN_A_ROW)]
            hot += [_raw_tcp(scratch, "hot") for _ in range(_IN_A_ROW)]
            last = {name: spread(times[-_IN_A_ROW:]) for name, times in (("tcp", tcp), ("puf", ours), ("mtls", mtls))}
            report.console.print(
                f"  turn {turn + 1}: raw TCP {last['tcp']} s, PUF {last['puf']} s, over mTLS {last['mtls']} s"
            )
        memory = plain.peak_memory()
        computed = {side: (after - computed[side]) / len(ours) for side, after in plain.cpu_seconds().items()}
    limit, median = statistics.median(tcp), statistics.median(ours)
    report.details["round_seconds"] = {"raw_tcp": tcp, "raw_tcp_from_one_block": hot, "puf": ours, "puf_mtls": mtls}
    report.details["round_cpu_seconds"] = computed
    busy = sum(computed.values()) / median / (os.cpu_count() or 1)
    shares = ", ".join(f"{side.replace('_', ' ')} {spent:.2f}" for side, spent in computed.items())
    report.at_most("round_processor_seconds", sum(computed.values()), 2.0, "s", shares)
    report.at_most("round_keeps_processors_busy", busy, None, "x", "processor seconds / seconds / cores")
    note = f"PUF {spread(ours)} s, raw TCP {spread(tcp)} s"
    report.at_most("round_to_raw_tcp", median / limit, 3.5, note=note)
    note = f"bytes that never leave the processor's cache: {spread(hot)} s"
    report.at_most("round_to_raw_tcp_from_one_block", median / statistics.median(hot), None, note=note)
    report.at_most("mtls_to_plain", statistics.median(mtls) / median, 1.25, note=f"mTLS {spread(mtls)} s")
    report.at_most("server_memory_10_clients", memory, 350, "MB", "peak resident set of the server process")


def _raw_tcp(scratch: Path, *options: str) -> float:
    """Seconds in which as many processes move the same bytes over plain sockets."""
    model = memoryview(b"m" * (4 * PARAMETERS))
    with ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=_CLIENTS))
        words = [str(listener.getsockname()[1]), str(len(model)), *options]
        for i in range(_CLIENTS):
            command = [sys.executable, "-m", "puf_lab.bench.raw_tcp", *words]
            stack.enter_context(Process(command, scratch / f"tcp-{i}.log"))
        connections = [listener.accept()[0] for _ in range(_CLIENTS)]
        pool = stack.enter_context(ThreadPoolExecutor(_CLIENTS))
        return seconds(lambda: list(pool.map(lambda connection: serve(connection, model), connections)))


def wire(report: Report, scratch: Path, repeats: int) -> None:
    """Bytes on the wire in both directions, counted by a relay."""
    with Relay() as proxy, Federation(scratch, 2, PARAMETERS, relay=proxy) as federation:
        proxy.reset()
        for _ in range(repeats):
            federation.round()
    payload = 2 * repeats * 4 * PARAMETERS
    report.at_most("wire_bytes_to_payload_down", proxy.to_client / payload, 1.01, note="counted by a relay")
    report.at_most("wire_bytes_to_payload_up", proxy.to_server / payload, 1.01, note="counted by a relay")
