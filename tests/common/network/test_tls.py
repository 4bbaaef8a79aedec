"""Files that do not fit are told at once, in a line that says what to do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from tests.pki import Pki

from puf_client.options import Secured
from puf_client.transport.dial import TokenFile, dial
from puf_common.errors import UsageError
from puf_common.files.private import exposed, write_new, write_over
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
    (lambda pki, cert, key: cert.write_text("x"), "no certificate in PEM"),
    (lambda pki, cert, key: pki.ca.write_text(""), "no certificate in PEM"),
    (lambda pki, cert, key: key.write_text("x"), "no private key in PEM"),
    (lambda pki, cert, key: key.write_bytes(paths(pki, "bert")[1].read_bytes()), "not the key of the certificate"),
    (lambda pki, cert, key: with_password(key), "has a password"),
    (lambda pki, cert, key: pki.expire(cert), "expired on"),
    (lambda pki, cert, key: pki.expire(pki.ca), "a new authority is needed"),
]


@pytest.mark.parametrize(("spoil", "says"), SPOILT)
def test_what_is_wrong_with_files_is_said(pki: Pki, spoil: Spoil, says: str) -> None:
    cert, key = paths(pki)
    spoil(pki, cert, key)
    with pytest.raises(UsageError, match=says):
        ClientTls.load(pki.ca, cert, key)
    with pytest.raises(UsageError, match=says):
        ServerTls(cert, key, pki.ca).credentials()


def test_files_come_together(pki: Pki) -> None:
    cert, key = paths(pki)
    with pytest.raises(UsageError, match="--tls-ca"):
        ClientTls.load(None, cert, key)
    for half in ((cert, None), (None, key)):
        with pytest.raises(UsageError, match="go together"):
            ClientTls.load(pki.ca, *half)
    shown = ClientTls.load(pki.ca, cert, key)
    assert "PRIVATE" not in repr(shown)


def test_a_client_that_cannot_be_known_is_told_before_it_dials(pki: Pki, tmp_path: Path) -> None:
    cert, key = paths(pki)
    operator = pki.authority.operator("ada")
    token = tmp_path / "anna.token"
    token.write_text("puf_secret\n")
    for options, says in (
        (Secured(tls_ca=pki.ca, tls_cert=cert, tls_key=key), "for anna, not for bert"),
        (Secured(tls_ca=pki.ca, tls_cert=operator.certificate, tls_key=operator.key), "operator's certificate"),
        (Secured(token_file=token), "over TLS only"),
        (Secured(tls_server_name="x"), "needs --tls-ca"),
        (Secured(tls_ca=pki.ca, token_file=tmp_path / "gone"), "cannot read --token-file"),
        (Secured(tls_ca=pki.ca, tls_cert=tmp_path / "{name}.crt", tls_key=key), r"bert\.crt"),
    ):
        with pytest.raises(UsageError, match=says):
            dial(options, server="127.0.0.1:1", name="bert", patience=1)


def test_a_token_is_read_anew_when_its_file_changes(tmp_path: Path) -> None:
    path = tmp_path / "token"
    write_new(path, b"first\n")
    token = TokenFile(path)
    assert token() == "first"
    write_over(path, b"second\n")
    assert token() == "second"
    for nonsense in (b"", b"two words", b"\xff\xfe"):
        write_over(path, nonsense)
        with pytest.raises(UsageError, match="holds no token"):
            token()


def test_private_files_are_private_and_whole(tmp_path: Path) -> None:
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
