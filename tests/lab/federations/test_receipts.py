"""The page of a receipt names the method, and a strength only where there is one."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.tickets import applied

from puf_common.receipts import receipt_file
from puf_common.receipts.page import page
from puf_lab.experiments.setting import Setting
from puf_lab.federations.in_process import LocalFederation
from puf_server.core.config import Forgetting, Recipe
from puf_server.engine import receipts


@pytest.mark.parametrize(("method", "strength"), [("puf", "kappa 2"), ("not", "")])
def test_the_page_of_every_method(method: str, strength: str, tmp_path: Path) -> None:
    setting = Setting(
        title="receipts",
        clients=3,
        rounds=1,
        data_options={"per_client": "10"},
        recipe=Recipe(lr=0.1, batch_size=10),
        forgetting=Forgetting(method=method, max_recovery_rounds=0, measure_seconds=0.0),
    )
    with LocalFederation(setting, tmp_path / "federation") as federation:
        federation.train()
        (ticket,) = federation.forget([0])
        shown = page(receipt_file.read(receipts.issue(federation.engine, ticket.id)))
    assert applied(ticket).method in shown
    assert ("kappa" in shown) == bool(strength)
    assert strength in shown
