"""Samples are forgotten by id: two updates in one round, the client stays, and no later batch has the samples."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from tests.e2e.federation import SECONDS, SETTING, Federation, opened

from puf_client.data import load_data
from puf_common.config.exit_codes import Exit
from puf_common.v1 import tickets_pb2 as tk

pytestmark = pytest.mark.e2e

HERE = Path(__file__).parent


def test_samples_by_id_stay_out_of_every_later_batch(trained: Path, tmp_path: Path) -> None:
    record = tmp_path / "record"
    record.mkdir()
    seen = record / "1.txt"
    options = {**SETTING.data.options, "record": str(record)}
    data = SETTING.data.model_copy(update={"name": "watched:load", "options": options})
    watched = SETTING.model_copy(update={"data": data})
    ids = load_data("digits", SETTING.context(1)).ids
    wanted = tmp_path / "forget.txt"
    wanted.write_text("# consent withdrawn\n" + "\n".join(ids[3:8]) + "\n")

    def batches(federation: Federation, rounds: int) -> Counter[str]:
        """The samples that client-1 trains on in some more rounds."""
        before = len(seen.read_text())
        federation.idle(federation.server.control.extend(rounds))
        return Counter(seen.read_text()[before:].split())

    with opened(tmp_path / "federation", watched, of=trained, code=HERE / "watched.py") as federation:
        federation.fleet(without=[1], wait=False)
        worker = federation.run(1)
        federation.joined(range(4))
        leaving = federation.unlearn(1, "--forget", str(wanted), "--reference", "case 7")
        assert leaving.wait(SECONDS) == Exit.OK, leaving.tail(20)
        assert "request of client-1 for 5 samples was applied in round 3 by PUF-Regular" in leaving.log.read_text()
        ticket = federation.ticket(1)
        assert (ticket.state, ticket.request.scope) == (tk.TICKET_STATE_COMPLETED, tk.SCOPE_SAMPLES)
        assert (ticket.request.forget_samples, ticket.request.retain_samples) == (5, 15)
        assert (ticket.request.reference, ticket.applied_round) == ("case 7", 3)
        assert ticket.scale == -2 * 80 / 5
        # Three others, and both parts of client-1.
        assert (federation.round(3).expected, federation.round(3).received) == (5, 5)
        # The forget part used them once; the retained part and recovery never.
        recovered = ticket.recovery_rounds
        assert Counter(seen.read_text().split()) == Counter(ids[3:8]) + Counter(
            {i: 1 + recovered for i in ids if i not in ids[3:8]}
        )
        # It is still a member, with fewer samples.
        assert worker.code is None
        assert (federation.member(1).status, federation.member(1).samples) == ("active", 15)
        assert batches(federation, 1) == Counter(i for i in ids if i not in ids[3:8])
        assert federation.round(4 + recovered).samples_processed == 3 * 20 + 15

        # A restarted worker leaves them out: its state directory names them.
        worker.end()
        federation.run(1)
        assert federation.member(1).samples == 15
        assert batches(federation, 1) == Counter(i for i in ids if i not in ids[3:8])
