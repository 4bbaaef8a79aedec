"""Class unlearning: several owners forget their samples of one class in one round, and stay."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from tests.grpc.test_client import CLIENTS
from tests.grpc.test_methods import clinic_that

from puf_client.cli.main import main
from puf_client.data import DataContext, load_data
from puf_client.data.labels import labels_of
from puf_common.config.exit_codes import Exit
from puf_common.v1 import tickets_pb2 as tk
from puf_server.core.state.rounds import RoundKind


def digits(i: int) -> list[int]:
    data = load_data("digits", DataContext(shard=i, shards=CLIENTS, options={"per_client": "20"}))
    return [int(label) for label in labels_of(data)]


def test_all_owners_of_a_class_forget_it_in_one_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    labels = {i: digits(i) for i in range(CLIENTS)}
    shared = sorted(set.intersection(*(set(mine) for mine in labels.values())))[0]
    with clinic_that(tmp_path, method="puf", strength="fixed", mode="special", kappa=0.5) as clinic:
        engine = clinic.server.engine
        with clinic.control() as control, ThreadPoolExecutor(CLIENTS) as owners:
            assert main(["--unlearn", *clinic.flags(0), "--yes", "--forget-class", "77"]) == Exit.USAGE
            assert "this client has no sample of class 77" in capsys.readouterr().err
            control.pause()
            words = ["--yes", "--forget-class", str(shared)]
            ends = [owners.submit(main, ["--unlearn", *clinic.flags(i), *words]) for i in labels]
            clinic.wait_for(lambda: len(engine.state.tickets) == CLIENTS, "the last request")
            control.resume()
            assert [end.result(120) for end in ends] == [Exit.OK] * CLIENTS
        [unlearned] = [r for r in engine.state.records.values() if r.kind is RoundKind.UNLEARN]
        assert unlearned.contributions == CLIENTS
        for i, mine in labels.items():
            ticket = clinic.ticket(i)
            held = mine.count(shared)
            assert (ticket.state, ticket.request.forget_samples) == (tk.TICKET_STATE_COMPLETED, held)
            # The request does not tell the server the class or the samples.
            assert ticket.request.scope == tk.SCOPE_SAMPLES
            assert engine.state.members[f"client-{i}"].samples == len(mine) - held
            gone = clinic.state_of(i).excluded(clinic.ids(i))
            assert np.array_equal(gone, np.array(mine) == shared)
        # The same command finds its completed request.
        assert main(["--unlearn", *clinic.flags(0), *words]) == Exit.OK
        assert len(engine.state.tickets) == CLIENTS
