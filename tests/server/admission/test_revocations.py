"""Revocations of a name, a key or one certificate."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.pki import Pki

from puf_common.errors import NotAuthenticated, NotFound, StorageCorrupted
from puf_common.network.certificates import Holder, holder_of
from puf_common.network.tls import read_certificates
from puf_server.admission.revocations import Revocations


@pytest.fixture
def holders(tmp_path: Path) -> tuple[Holder, Holder]:
    """Two certificates of anna with the same key."""
    authority = Pki(tmp_path / "pki").authority
    file = authority.client("anna").certificate
    first = holder_of(read_certificates(file)[0])
    authority.client("anna", renew=True)
    second = holder_of(read_certificates(file)[0])
    assert (first.key, first.serial != second.serial) == (second.key, True)
    return first, second


def test_a_serial_refuses_one_certificate(tmp_path: Path, holders: tuple[Holder, Holder]) -> None:
    first, second = holders
    revocations = Revocations(tmp_path)
    revocations.revoke(serial=first.serial)
    with pytest.raises(NotAuthenticated, match="this certificate of anna"):
        revocations.require_not_revoked("anna", first)
    revocations.require_not_revoked("anna", second)
    revocations.restore(serial=first.serial)
    revocations.require_not_revoked("anna", first)


def test_a_key_refuses_all_its_certificates(tmp_path: Path, holders: tuple[Holder, Holder]) -> None:
    revocations = Revocations(tmp_path)
    revocations.revoke(key=holders[0].key)
    for holder in holders:
        with pytest.raises(NotAuthenticated, match="this certificate of anna"):
            revocations.require_not_revoked("anna", holder)
    revocations.require_not_revoked("anna", replace(holders[0], key="another", serial="1"))


def test_a_name_refuses_the_client_with_every_credential(tmp_path: Path, holders: tuple[Holder, Holder]) -> None:
    revocations = Revocations(tmp_path)
    revocations.revoke(name="anna")
    for holder in (None, holders[0], replace(holders[0], key="another", serial="1")):
        with pytest.raises(NotAuthenticated, match="anna was revoked"):
            revocations.require_not_revoked("anna", holder)
    revocations.require_not_revoked("bert")
    assert (tmp_path / "revoked.json").stat().st_mode & 0o777 == 0o600


def test_only_what_is_revoked_can_be_restored(tmp_path: Path) -> None:
    revocations = Revocations(tmp_path)
    assert revocations.value.empty
    with pytest.raises(NotFound, match="anna is not revoked"):
        revocations.restore(name="anna")
    revocations.revoke(name="anna")
    assert not revocations.value.empty
    revocations.restore(name="anna")
    assert revocations.value.empty


def test_a_damaged_file_changes_nothing_while_serving_and_stops_a_start(tmp_path: Path) -> None:
    serving = Revocations(tmp_path)
    serving.revoke(name="anna")
    (tmp_path / "revoked.json").write_text("{")
    serving.refresh()
    with pytest.raises(NotAuthenticated):
        serving.require_not_revoked("anna")
    with pytest.raises(StorageCorrupted, match="damaged"):
        Revocations(tmp_path)
