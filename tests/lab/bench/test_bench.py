"""The bench: goals, figures of earlier runs, counted bytes."""

from __future__ import annotations

import json
import socket
import threading
from pathlib import Path

import pytest

from puf_common.errors import UsageError
from puf_common.tensors.chunks import CHUNK_BYTES
from puf_lab.bench import large
from puf_lab.bench.picture import draw
from puf_lab.bench.relay import Line, Relay
from puf_lab.bench.report import Figure, Report, spread
from puf_lab.bench.run import run_bench


def test_a_goal_is_a_lower_or_an_upper_bound() -> None:
    assert Figure("ratio", 3.9, goal=4.0).met is True
    assert Figure("ratio", 4.1, goal=4.0).met is False
    assert Figure("speed", 0.7, goal=0.8, at_most=False).met is False
    assert Figure("information", 1.0).met is None
    assert spread([3.0, 1.0, 2.0]) == "2 (1 to 3)"


def test_figures_of_other_parts_stay_and_new_ones_replace_old_ones(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    first, second = Report(), Report()
    first.at_most("a", 5.0, 4.0)
    first.at_most("b", 1.0, None, "s")
    first.details["growth"] = {"clients": [1]}
    first.write(path)
    second.at_most("a", 3.0, 4.0)
    second.write(path)
    result = json.loads(path.read_text())
    assert {n: (f["value"], f["met"]) for n, f in result["figures"].items()} == {"a": (3.0, True), "b": (1.0, None)}
    assert result["details"]["growth"] == {"clients": [1]}


def test_the_picture_is_drawn_from_partial_results(tmp_path: Path) -> None:
    draw({"details": {"round_seconds": {"raw_tcp": [0.3], "puf": [1.0, 1.2]}}}, tmp_path / "bench.png")
    assert (tmp_path / "bench.png").read_bytes().startswith(b"\x89PNG")


def test_an_unknown_part_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no part 'speed'.*transfer"):
        run_bench(tmp_path, parts=["speed"], repeats=1)


@pytest.mark.parametrize("line", [None, Line(rate=1e6, round_trip=0.002)])
def test_the_relay_forwards_and_counts_each_direction(line: Line | None) -> None:
    with Relay(line=line) as relay, socket.create_server(("127.0.0.1", 0)) as listener:
        relay.port = listener.getsockname()[1]

        def answer() -> None:
            server, _ = listener.accept()
            with server:
                assert server.recv(5, socket.MSG_WAITALL) == b"hello"
                server.sendall(b"x" * 1000)

        answering = threading.Thread(target=answer)
        answering.start()
        host, _, port = relay.address.partition(":")
        with socket.create_connection((host, int(port))) as client:
            client.sendall(b"hello")
            assert client.recv(1000, socket.MSG_WAITALL) == b"x" * 1000
        answering.join()
    assert (relay.to_server, relay.to_client) == (5, 1000)


def test_streaming_clients_complete_a_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The part for large models, with a model of three and a half chunks."""
    monkeypatch.setattr(large, "_PARAMETERS", 7 * (CHUNK_BYTES // 8))
    monkeypatch.setattr(large, "_CLIENTS", 2)
    report = Report()
    large.large(report, tmp_path, 2)
    assert len(report.details["large_model"]["round_seconds"]) == 1
