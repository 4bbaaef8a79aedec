"""Receipts as files: signed, in one spelling, and rendered as a page."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from puf_common.errors import TransferCorrupted
from puf_common.receipts import signed_receipt
from puf_common.receipts.content import ReceiptContent, canonical
from puf_common.receipts.evidence import STATEMENT
from puf_common.receipts.page import page, write
from puf_common.receipts.signing_key import SigningKey, fingerprint

KEY = SigningKey.generate()


def share(accuracy: float) -> dict[str, Any]:
    return {"samples": 100, "accuracy": accuracy, "interval": [0.1, 0.9], "loss": 0.4}


def attack(forget: float, holdout: float, verdict: str) -> dict[str, Any]:
    return {
        "threshold": 0.4,
        "forget": {"members": 50, "samples": 100, "share": forget, "interval": [0.1, 0.9]},
        "holdout": {"members": 50, "samples": 100, "share": holdout, "interval": [0.1, 0.9]},
        "difference": [-0.1, 0.1],
        "verdict": verdict,
    }


def model(version: int) -> dict[str, Any]:
    return {"version": version, "round": version, "digest": f"{version:064x}", "status": "ready"}


def content(**changes: Any) -> ReceiptContent:
    """A receipt such as the server builds it."""
    return ReceiptContent.model_validate(stated() | changes)


def stated() -> dict[str, Any]:
    measured = {
        "version": 3,
        "forget": share(0.55),
        "holdout": share(0.5),
        "yeom": attack(0.5, 0.48, "like unseen data"),
        "song": attack(0.5, 0.52, "like unseen data"),
        "verdict": "like unseen data",
    }
    cost = {"rounds": 1, "bytes_to_clients": 400_000, "bytes_from_clients": 300_000, "samples_trained": 900}
    return {
        "kind": "puf-receipt",
        "format": 1,
        "statement": f"Forgetting by this method is {STATEMENT}.",
        "issued_at": "2026-11-16T12:00:00Z",
        "software": "puf 0.1.0",
        "federation": {"id": "f-1", "title": "Clinics", "model": "digits-cnn", "task": "classification"},
        "ticket": {
            "id": "t-1",
            "client": "clinic-7",
            "membership": 1,
            "request_key": "client-0",
            "scope": "client",
            "forget_samples": None,
            "retain_samples": None,
            "reference": "case 7",
            "filed_by": "client",
            "received_at": "2026-11-01T12:00:00Z",
            "filed_at": "2026-11-02T12:00:00Z",
            "deadline_at": "2026-12-01T12:00:00Z",
            "applied_at": "2026-11-15T12:00:00Z",
            "completed_at": "2026-11-16T11:00:00Z",
            "history": [{"at": "2026-11-02T12:00:00Z", "state": "pending", "note": "filed"}],
        },
        "method": {
            "name": "puf-regular",
            "mode": "regular",
            "flip": "client",
            "kappa": 2.0,
            "eta_u": None,
            "epochs": 1,
            "scale": -20.0,
            "attempts": 1,
            "discloses": None,
        },
        "rounds": {"applied": 3, "recovery": 2, "recovered": True},
        "models": {"before": model(2), "unlearned": model(3), "recovered": model(5)},
        "deleted_history": {"records": 0, "bytes": 0},
        "deleted_models": [model(1), model(2)],
        "exports": [{"at": "2026-11-10T12:00:00Z", "version": 2, "digest": "ab"}],
        "backups": [{"at": "2026-11-11T12:00:00Z", "digest": "cd", "versions": [1, 2]}],
        "costs": {"unlearning": cost, "recovery": cost, "requests_served_together": 1},
        "measured_by_others": {"by": "others", "clients": 3, **dict.fromkeys(receipts_stages(), share(0.8))},
        "measured_by_client": {
            "by": "the client itself",
            **dict.fromkeys(receipts_stages(), measured),
            "verdict": "like unseen data",
        },
        "audit": {"line": 41, "hash": "00" * 32},
    }


def receipts_stages() -> tuple[str, ...]:
    return ("before", "unlearned", "recovered")


COMPARISON = {
    "source": "the other clients' hold-outs, matched by label",
    "before": 0.93,
    "after": 0.55,
    "after_interval": [0.47, 0.63],
    "change": [0.25, 0.5],
    "forget_samples": 60,
    "unseen_samples": 212,
    "detectable": 0.13,
    "tolerated": 0.15,
    "reason": "Now both are alike.",
    "figures": "93 % before",
}
FILE = signed_receipt.issue(content(), KEY)


def test_an_issued_receipt_can_be_read() -> None:
    receipt = signed_receipt.read(FILE)
    assert receipt.content == content()
    assert receipt.content.as_json() == stated()
    assert (receipt.ticket, receipt.client, receipt.federation) == ("t-1", "clinic-7", "f-1")
    assert receipt.key == KEY.public
    assert receipt.key_fingerprint == fingerprint(KEY.public)


def test_every_changed_byte_is_detected() -> None:
    for place in range(len(FILE)):
        forged = bytearray(FILE)
        # Another digit, or the same letter in the other case.
        forged[place] ^= 0x20 if place % 2 else 0x01
        with pytest.raises(TransferCorrupted):
            signed_receipt.read(bytes(forged))


@pytest.mark.parametrize("place", [0, 1, len(FILE) // 2, len(FILE)])
@pytest.mark.parametrize("added", [b" ", b"\n", b"\x00"])
def test_every_added_byte_is_detected(place: int, added: bytes) -> None:
    with pytest.raises(TransferCorrupted):
        signed_receipt.read(FILE[:place] + added + FILE[place:])


@given(st.integers(0, len(FILE) - 1))
@settings(max_examples=50)
def test_a_truncated_receipt_is_refused(length: int) -> None:
    with pytest.raises(TransferCorrupted):
        signed_receipt.read(FILE[:length])


def test_the_signature_of_another_receipt_is_refused() -> None:
    other = json.loads(signed_receipt.issue(content(issued_at="2027-01-01T00:00:00Z"), KEY))
    mixed = json.dumps({**json.loads(FILE), "signature": other["signature"]}, indent=1, sort_keys=True) + "\n"
    with pytest.raises(TransferCorrupted, match="changed after it was signed"):
        signed_receipt.read(mixed.encode())


@pytest.mark.parametrize(
    "junk", [b"", b"{}", b"[]", b"null", b"\xff\xfe", b'{"receipt": 1, "signature": 2}', b"[" * 5000]
)
def test_junk_is_not_a_receipt(junk: bytes) -> None:
    with pytest.raises(TransferCorrupted):
        signed_receipt.read(junk)


def signed(content: dict[str, Any]) -> bytes:
    """The file of a server that states something else than this version."""
    signature = KEY.sign(b"puf receipt 1\n" + canonical(content)).hex()
    sealed = {"algorithm": "Ed25519", "public_key": KEY.public.hex(), "value": signature}
    return json.dumps({"receipt": content, "signature": sealed}, indent=1, sort_keys=True).encode() + b"\n"


def test_another_format_is_refused_even_when_signed() -> None:
    with pytest.raises(TransferCorrupted, match="of format 2 cannot be read"):
        signed_receipt.read(signed(stated() | {"format": 2}))


def test_facts_that_a_newer_server_adds_are_ignored_and_signed() -> None:
    newer = stated() | {"noise": {"sigma": 1.5}, "audit": stated()["audit"] | {"tree": "ab"}}
    file = signed(newer)
    assert signed_receipt.read(file).content == content()
    with pytest.raises(TransferCorrupted, match="changed after it was signed"):
        signed_receipt.read(file.replace(b"1.5", b"2.5"))


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ({"ticket": None}, "ticket"),
        ({"method": {}}, r"method\.name"),
        ({"audit": {"line": "last", "hash": ""}}, r"audit\.line"),
        ({"exports": [{"at": None, "version": 1}]}, r"exports\.0\.digest"),
    ],
)
def test_a_signed_receipt_that_lacks_facts_is_refused(change: dict[str, Any], where: str) -> None:
    with pytest.raises(TransferCorrupted, match=f"intact, but {where} is missing or has another type"):
        signed_receipt.read(signed(stated() | change))


KEPT = Path(__file__).parents[2] / "fixtures" / "state_0_1" / "receipt.json"


def test_a_receipt_of_version_0_1_has_the_same_canonical_bytes() -> None:
    exact = json.loads(KEPT.read_bytes())["receipt"]
    receipt = signed_receipt.read(KEPT.read_bytes())
    assert canonical(receipt.content.as_json()) == canonical(exact)
    again = canonical(exact)
    assert hashlib.sha256(again).hexdigest() == "55711c024279c67e468d6feb7a441503a6228bb78774e0cf92c2fafe79770f93"


def test_a_field_that_was_added_later_is_left_out_where_it_has_no_value() -> None:
    assert "comparison" not in content().as_json()["measured_by_client"]
    mine = stated()["measured_by_client"] | {"comparison": COMPARISON}
    assert content(measured_by_client=mine).as_json()["measured_by_client"]["comparison"] == COMPARISON


def test_whole_numbers_stay_whole_and_fractions_stay_fractions() -> None:
    method = stated()["method"]
    for value in (2, 2.0, 1e-7):
        text = canonical(content(method=method | {"kappa": value}).as_json())
        assert canonical(stated() | {"method": method | {"kappa": value}}) == text


class TestPage:
    def test_states_the_main_facts(self) -> None:
        html = page(signed_receipt.read(FILE))
        for words in (
            "Request to forget clinic-7",
            "16 November 2026",
            "Like unseen data",
            "case 7",
            "not a proof of erasure",
            "model 2 was exported on 10 November 2026",
            "a backup with 2 such models was made on 11 November 2026",
            "puf-client verify",
            fingerprint(KEY.public),
        ):
            assert words in html

    def test_loads_nothing_and_runs_no_script(self) -> None:
        html = page(signed_receipt.read(FILE))
        assert not re.search(r"<script|<link|<img|src=|href=|url\(|https?://", html)

    def test_texts_of_the_receipt_are_escaped(self) -> None:
        evil = content(
            ticket=stated()["ticket"] | {"reference": "<script>alert(1)</script>"},
            federation=stated()["federation"] | {"title": "<b>&"},
        )
        html = page(signed_receipt.read(signed_receipt.issue(evil, KEY)))
        assert "<script>" not in html
        assert "&lt;b&gt;&amp;" in html

    @pytest.mark.parametrize(
        ("verdict", "says"),
        [
            ("not like unseen data", "Not like unseen data."),
            ("like unseen data", "Like unseen data."),
            ("too few samples", "Too few samples."),
            ("forgotten", "Forgotten."),
            ("still known", "Still known."),
            ("nothing measurable changed", "Nothing measurable changed."),
            ("too few samples to tell", "Too few samples to tell."),
            ("a <verdict> of a newer server", "A &lt;verdict&gt; of a newer server."),
            (None, "Not measured."),
        ],
    )
    def test_states_every_verdict(self, verdict: str | None, says: str) -> None:
        mine = stated()["measured_by_client"] | {"verdict": verdict}
        assert says in page(signed_receipt.read(signed_receipt.issue(content(measured_by_client=mine), KEY)))

    @pytest.mark.parametrize(
        ("verdict", "tone"),
        [
            ("forgotten", "good"),
            ("still known", "bad"),
            ("nothing measurable changed", "open"),
            ("too few samples to tell", "open"),
            # Of version 0.1: the model before was not judged, so it is not green.
            ("like unseen data", "open"),
            ("not like unseen data", "bad"),
            (None, "open"),
        ],
    )
    def test_only_forgotten_is_green(self, verdict: str | None, tone: str) -> None:
        mine = stated()["measured_by_client"] | {"verdict": verdict}
        html = page(signed_receipt.read(signed_receipt.issue(content(measured_by_client=mine), KEY)))
        assert f'class="verdict" style="--tone: var(--{tone})"' in html

    def test_shows_before_after_and_unseen(self) -> None:
        mine = stated()["measured_by_client"] | {"verdict": "forgotten", "comparison": COMPARISON}
        html = page(signed_receipt.read(signed_receipt.issue(content(measured_by_client=mine), KEY)))
        assert "<b>Forgotten.</b> Now both are alike." in html
        for words in (
            "93 %",
            "55 %",
            "(47 to 63 %)",
            "50 %",
            "60 forgotten with 212 unseen samples",
            "13 points or more",
        ):
            assert words in html
        bare = mine | {"comparison": COMPARISON | {"before": None, "change": None}}
        assert "not measured" in page(signed_receipt.read(signed_receipt.issue(content(measured_by_client=bare), KEY)))

    @pytest.mark.parametrize(
        ("forget", "says"), [(0.9, "more like its training data"), (0.1, "does worse on the forgotten data")]
    )
    def test_states_how_the_data_differs_from_unseen_data(self, forget: float, says: str) -> None:
        found = stated()["measured_by_client"]["recovered"] | {
            "yeom": attack(forget, 0.5, "not like unseen data"),
            "verdict": "not like unseen data",
        }
        mine = stated()["measured_by_client"] | {"recovered": found, "verdict": "not like unseen data"}
        assert says in page(signed_receipt.read(signed_receipt.issue(content(measured_by_client=mine), KEY)))

    def test_a_receipt_without_measurements_has_a_page(self) -> None:
        nothing = {"by": "no client", **dict.fromkeys(receipts_stages()), "verdict": None}
        bare = content(
            measured_by_client=nothing,
            measured_by_others={"by": "no client", "clients": 0, **dict.fromkeys(receipts_stages())},
            models=dict.fromkeys(receipts_stages()),
            rounds={"applied": None, "recovery": 0, "recovered": None},
            deleted_models=[],
            exports=[],
            backups=[],
            method=stated()["method"] | {"name": "none", "kappa": None, "eta_u": 3.0},
        )
        html = page(signed_receipt.read(signed_receipt.issue(bare, KEY)))
        assert "did not measure" in html
        assert "none that the federation knows of" in html

    def test_is_written_next_to_its_receipt(self, tmp_path: Path) -> None:
        json_path, html_path = write(FILE, tmp_path / "new")
        assert json_path == tmp_path / "new" / "receipt-t-1.json"
        assert json_path.read_bytes() == FILE
        assert html_path.read_text().startswith("<!DOCTYPE html>")
        with pytest.raises(TransferCorrupted):
            write(FILE + b" ", tmp_path)
