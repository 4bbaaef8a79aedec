"""Log lines of a call carry its round, client and ticket."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from tests.grpc.raw import Raw, nan_update
from tests.running import make_state, running

from puf_common.logging import configure


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    root = logging.getLogger()
    before, level = list(root.handlers), root.level
    stream = io.StringIO()
    configure(log_format="json", stream=stream)
    yield stream
    root.handlers[:] = before
    root.setLevel(level)


def test_log_lines_of_a_call_carry_its_client_round_and_ticket(tmp_path: Path, stream: io.StringIO) -> None:
    with (
        running(make_state(tmp_path / "state")) as server,
        Raw(server.port, "anna") as anna,
        Raw(server.port, "bert") as bert,
    ):
        anna.join()
        bert.join()
        work = anna.wait().train
        with pytest.raises(grpc.RpcError):
            anna.submit(work, nan_update())
        ticket = anna.file().ticket.id
    lines: list[dict[str, Any]] = [json.loads(line) for line in stream.getvalue().splitlines()]
    (refused,) = [x for x in lines if x["event"] == "update refused"]
    assert (refused["client"], refused["round"], refused["reason"]) == ("anna", 1, "INVALID_UPDATE")
    assert {x["client"] for x in lines if x["event"] == "client.joined"} == {"anna", "bert"}
    (filed,) = [x for x in lines if x["event"] == "ticket.filed"]
    assert (filed["client"], filed["ticket"]) == ("anna", ticket)
    assert all("round" in x for x in lines if x["logger"] in ("puf_server.engine.engine", "puf_server.rpc.federation"))
