"""Rounds with a part of the clients, the same bits in every run, and a server without torch."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from tests.e2e.federation import SECONDS, opened, train

from puf_common.config.exit_codes import Exit
from puf_common.v1 import tickets_pb2 as tk

pytestmark = pytest.mark.e2e


def test_the_same_seeds_give_the_same_bits(trained: Path, tmp_path: Path) -> None:
    """A second federation of new processes with the same setting gives the same model."""
    assert train(tmp_path) == (trained / "model").read_bytes()


def test_partial_participation(tmp_path: Path) -> None:
    init = ["--plan-participation", "0.5"]
    with opened(tmp_path / "federation", init=init) as federation:
        federation.fleet()
        federation.idle()
        for number in (1, 2):
            assert (federation.round(number).expected, federation.round(number).received) == (2, 2)
            assert federation.round(number).samples_processed == 2 * 20
        took_part = [i for i in range(4) if federation.member(i).last_round]
        target = took_part[0]
        leaving = federation.unlearn(target)
        assert leaving.wait(SECONDS) == Exit.OK, leaving.tail(20)
        ticket = federation.ticket(target)
        assert (ticket.state, ticket.applied_round) == (tk.TICKET_STATE_COMPLETED, 3)
        # The target and half of the other three, rounded up.
        assert (federation.round(3).kind, federation.round(3).expected) == ("unlearn", 3)
        assert ticket.scale == -2 * 60 / 20
        for number in range(4, 4 + ticket.recovery_rounds):
            assert (federation.round(number).kind, federation.round(number).expected) == ("recover", 2)
        # The server has served, summed and unlearned without loading torch.
        if sys.platform == "linux":
            assert "libtorch" not in Path(f"/proc/{federation.server.pid}/maps").read_text()
        federation.end()
