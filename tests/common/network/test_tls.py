"""Unusable TLS files are refused at once, in one line that says what to do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from tests.pki import Pki

from puf_common.errors import UsageError
from puf_common.files.private import exposed, write_new
from puf_common.network.certificates import new_key
from puf_common.network.tls import ClientTls, ServerTls, refusal


@pytest.fixture
def pki(tmp_path: Path) -> Pki:
    return Pki(tmp_path / "pki")


def paths(pki: Pki, name: str = "anna") -> tuple[Path, Path]:
    issued = pki.authority.client(name)
    assert issued.key is not None
    return issued.certificate, issued.key


def with_password(path: Path) -> None:
    key, encoding, form = new_key(), serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    path.write_bytes(key.private_bytes(encoding, form, serialization.BestAvailableEncryption(b"x")))


Spoil = Callable[[Pki, Path, Path], object]
SPOILT: list[tuple[Spoil, str]] = [
    (lambda pki, cert, key: cert.unlink(), "cannot read"),
    (lambda pki, cert, key: key.unlink(), "cannot read"),
    (lambda pki, cert, key: pki.ca.unlink(), "cannot read"),
    (lambda pki, cert, key: cert.write_text("x"), "not a certificate in PEM"),
    (lambda pki, cert, key: pki.ca.write_text(""), "not a certificate in PEM"),
    (lambda pki, cert, key: key.write_text("x"), "not a private key in PEM"),
    (lambda pki, cert, key: key.write_bytes(paths(pki, "bert")[1].read_bytes()), "not the key of the certificate"),
    (lambda pki, cert, key: with_password(key), "has a password"),
    (lambda pki, cert, key: pki.expire(cert), "expired on"),
    (lambda pki, cert, key: pki.expire(pki.ca), "a new authority is needed"),
]


@pytest.mark.parametrize(("spoil", "says"), SPOILT)
def test_an_unusable_file_is_a_clear_error(pki: Pki, spoil: Spoil, says: str) -> None:
    cert, key = paths(pki)
    spoil(pki, cert, key)
    with pytest.raises(UsageError, match=says):
        ClientTls.load(pki.ca, cert, key)
    with pytest.raises(UsageError, match=says):
        ServerTls(cert, key, pki.ca).credentials()


def test_certificate_and_key_are_given_together(pki: Pki) -> None:
    cert, key = paths(pki)
    with pytest.raises(UsageError, match="--tls-ca"):
        ClientTls.load(None, cert, key)
    for half in ((cert, None), (None, key)):
        with pytest.raises(UsageError, match="go together"):
            ClientTls.load(pki.ca, *half)
    shown = ClientTls.load(pki.ca, cert, key)
    assert "PRIVATE" not in repr(shown)


def test_private_files_are_private_and_complete(tmp_path: Path) -> None:
    path = tmp_path / "key"
    write_new(path, b"secret")
    assert path.stat().st_mode & 0o777 == 0o600
    assert not exposed(path)
    with pytest.raises(UsageError, match="not overwritten"):
        write_new(path, b"other")
    assert path.read_bytes() == b"secret"
    assert [p.name for p in tmp_path.iterdir()] == ["key"]
    path.chmod(0o644)
    assert exposed(path)


@pytest.mark.parametrize(
    ("details", "tls", "says"),
    [
        ("x: CERTIFICATE_VERIFY_FAILED: certificate has expired: OK", True, "--renew"),
        ("x: CERTIFICATE_VERIFY_FAILED: certificate is not yet valid: OK", True, "clocks"),
        ("x: CERTIFICATE_VERIFY_FAILED: unable to get local issuer certificate: OK", True, "--tls-ca"),
        ("UNAUTHENTICATED: Hostname Verification Check failed.", True, "--tls-server-name"),
        ("OPENSSL_internal:WRONG_VERSION_NUMBER", True, "runs without TLS"),
        ("last error: Socket closed", True, "--tls-cert"),
        ("last error: Socket closed", False, "--tls-ca"),
        ("last error: Connection refused", True, None),
        ("last error: Connection refused", False, None),
    ],
)
def test_failed_handshakes_are_explained(details: str, tls: bool, says: str | None) -> None:
    found = refusal(details, "fed:7300", tls=tls)
    if says is None:
        assert found is None
    else:
        assert found is not None
        assert says in found.sentence
        assert "fed:7300" in found.sentence
