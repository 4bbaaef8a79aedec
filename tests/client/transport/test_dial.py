"""Credentials from the command line: unsuitable files are refused before the client connects."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.pki import Pki

from puf_client.options import Secured
from puf_client.transport.dial import TokenFile, certified_name, dial
from puf_common.errors import UsageError
from puf_common.files.private import write_new, write_over


@pytest.fixture
def pki(tmp_path: Path) -> Pki:
    return Pki(tmp_path / "pki")


def certificate(pki: Pki, name: str) -> tuple[Path, Path]:
    issued = pki.authority.client(name)
    assert issued.key is not None
    return issued.certificate, issued.key


def test_unsuitable_credentials_are_refused_before_connecting(pki: Pki, tmp_path: Path) -> None:
    cert, key = certificate(pki, "anna")
    operator = pki.authority.operator("ada")
    token = tmp_path / "anna.token"
    token.write_text("puf_secret\n")
    for options, says in (
        (Secured(tls_ca=pki.ca, tls_cert=cert, tls_key=key), "is for anna, not for bert: omit --name"),
        (Secured(tls_ca=pki.ca, tls_cert=operator.certificate, tls_key=operator.key), "operator's certificate"),
        (Secured(token_file=token), "over TLS only: add --tls-ca"),
        (Secured(tls_server_name="x"), "needs --tls-ca"),
        (Secured(tls_ca=pki.ca, token_file=tmp_path / "missing"), "cannot read --token-file"),
        (Secured(tls_ca=pki.ca, tls_cert=tmp_path / "{name}.crt", tls_key=key), r"bert\.crt"),
    ):
        with pytest.raises(UsageError, match=says):
            dial(options, server="127.0.0.1:1", name="bert", patience=1)


def test_a_certificate_gives_the_clients_name(pki: Pki) -> None:
    cert, key = certificate(pki, "anna")
    options = Secured(tls_ca=pki.ca, tls_cert=cert, tls_key=key)
    assert certified_name(options) == "anna"
    with dial(options, server="127.0.0.1:1", name="anna", patience=1) as transport:
        assert transport.name == "anna"


def test_there_is_no_name_without_a_certificate_or_if_its_path_needs_the_name(pki: Pki, tmp_path: Path) -> None:
    assert certified_name(Secured()) == ""
    assert certified_name(Secured(tls_ca=pki.ca, tls_cert=tmp_path / "{name}.crt")) == ""


def test_name_in_a_path_stands_for_the_clients_name(pki: Pki) -> None:
    cert, key = certificate(pki, "anna")
    names = {"tls_cert": cert.with_name("{name}.crt"), "tls_key": key.with_name("{name}.key")}
    with dial(Secured(tls_ca=pki.ca, **names), server="127.0.0.1:1", name="anna", patience=1) as transport:
        assert transport.name == "anna"


def test_a_replaced_token_file_takes_effect_at_the_next_call(tmp_path: Path) -> None:
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


@pytest.mark.parametrize("address", ["localhost:99999", "localhost", "localhost:0", ":7300"])
def test_an_address_that_no_server_can_have_is_refused(address: str) -> None:
    with pytest.raises(UsageError, match="the server's address"):
        dial(Secured(), server=address, name="anna", patience=1)
