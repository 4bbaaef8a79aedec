"""The page of a receipt names the method, and a strength only if the method has one."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.tickets import applied

from puf_common.receipts import signed_receipt
from puf_common.receipts.page import page
from puf_lab.federations.in_process import InProcessFederation
from puf_lab.spec.federation import DataSpec, FederationSpec
from puf_server.core.config import Forgetting, Recipe
from puf_server.engine import receipts


@pytest.mark.parametrize(
    ("method", "strength"),
    [("puf", "kappa 2"), ("puf-auto", "adaptive strength, 3 epochs in each round, kappa"), ("not", "")],
)
def test_the_page_of_every_method(method: str, strength: str, tmp_path: Path) -> None:
    setting = FederationSpec(
        title="receipts",
        data=DataSpec(clients=3, options={"per_client": 10}),
        rounds=1,
        recipe=Recipe(lr=0.1, batch_size=10),
        forgetting=Forgetting(
            method=method.removesuffix("-auto"),
            strength="auto" if method == "puf-auto" else "fixed",
            max_recovery_rounds=0,
        ),
    )
    with InProcessFederation(setting, tmp_path / "federation") as federation:
        federation.train()
        (ticket,) = federation.forget([0])
        shown = page(signed_receipt.read(receipts.issue(federation.engine, ticket.id)))
    assert applied(ticket).method in shown
    assert ("kappa" in shown) == bool(strength)
    assert strength in shown
