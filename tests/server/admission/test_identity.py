"""Who a caller is: by metadata, by certificate, by token."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import pytest
from tests.pki import Pki

from puf_common.errors import InvalidArgument, NotAuthenticated
from puf_server.admission.identity import (
    AnyOperator,
    CertificateIdentity,
    ClaimedIdentity,
    Context,
    TokenIdentity,
)
from puf_server.admission.revocations import Revocations
from puf_server.admission.tokens import Tokens
from puf_server.pki.authority import Issued


class Call:
    """What gRPC knows about a call."""

    def __init__(
        self, metadata: tuple[tuple[str, str | bytes], ...] = (), certificates: tuple[bytes, ...] = ()
    ) -> None:
        self._metadata = metadata
        self._certificates = certificates

    def invocation_metadata(self) -> tuple[tuple[str, str | bytes], ...]:
        return self._metadata

    def auth_context(self) -> Mapping[str, Any]:
        return {"x509_pem_cert": self._certificates} if self._certificates else {}


def claiming(*names: str | bytes) -> Context:
    return cast(Context, Call(tuple(("puf-client", name) for name in names)))


def sending(*values: str) -> Context:
    return cast(Context, Call(tuple(("authorization", value) for value in values)))


def showing(issued: Issued) -> Context:
    # The claim in the metadata must be ignored.
    return cast(Context, Call((("puf-client", "mallory"),), (issued.certificate.read_bytes(),)))


@pytest.fixture
def pki(tmp_path: Path) -> Pki:
    return Pki(tmp_path / "pki")


def test_without_tls_the_claimed_name_is_the_identity() -> None:
    assert ClaimedIdentity()(claiming("clinic-7")) == "clinic-7"
    assert AnyOperator()(claiming()) == "operator"


@pytest.mark.parametrize("names", [(), ("anna", "bert"), (b"anna",)])
def test_a_claim_must_be_made_once_as_text(names: tuple[str | bytes, ...]) -> None:
    with pytest.raises(NotAuthenticated, match="puf-client"):
        ClaimedIdentity()(claiming(*names))


@pytest.mark.parametrize("name", ["", ".hidden", "-flag", "a/b", "ä", "a" * 65, "a b", "a\n"])
def test_a_claim_must_be_a_valid_name(name: str) -> None:
    with pytest.raises(InvalidArgument, match="cannot be a name"):
        ClaimedIdentity()(claiming(name))


def test_a_clients_certificate_is_a_client_and_an_operators_is_not(pki: Pki, tmp_path: Path) -> None:
    client, operator = (
        CertificateIdentity(Revocations(tmp_path)),
        CertificateIdentity(Revocations(tmp_path), "operator"),
    )
    anna, ada = showing(pki.authority.client("anna")), showing(pki.authority.operator("ada"))
    assert client(anna) == "anna"
    assert operator(ada) == "ada"
    with pytest.raises(NotAuthenticated, match="is for an operator; this port needs one of a client"):
        client(ada)
    with pytest.raises(NotAuthenticated, match="the certificate of anna is for a client"):
        operator(anna)
    for identify in (client, operator):
        with pytest.raises(NotAuthenticated, match="no client certificate"):
            identify(claiming("anna"))


def test_an_expired_certificate_is_refused_while_its_connection_lasts(pki: Pki, tmp_path: Path) -> None:
    issued = pki.authority.client("anna")
    pki.expire(issued.certificate)
    with pytest.raises(NotAuthenticated, match="expired"):
        CertificateIdentity(Revocations(tmp_path))(showing(issued))


def test_a_revoked_name_concerns_clients_and_a_revoked_key_also_operators(pki: Pki, tmp_path: Path) -> None:
    revocations = Revocations(tmp_path)
    client, operator = pki.authority.client("ada"), pki.authority.operator("ada")
    revocations.revoke(name="ada")
    with pytest.raises(NotAuthenticated, match="ada was revoked"):
        CertificateIdentity(revocations)(showing(client))
    assert CertificateIdentity(revocations, "operator")(showing(operator)) == "ada"
    revocations.revoke(serial=operator.serial)
    with pytest.raises(NotAuthenticated, match="this certificate of ada"):
        CertificateIdentity(revocations, "operator")(showing(operator))


def test_a_token_is_the_identity_until_its_client_is_revoked(tmp_path: Path) -> None:
    tokens, revocations = Tokens(tmp_path), Revocations(tmp_path)
    identify = TokenIdentity(tokens, revocations)
    token = tokens.add("anna", 1)
    assert identify(sending(f"Bearer {token}")) == "anna"
    assert identify(sending(f"bearer {token}")) == "anna"
    revocations.revoke(name="anna")
    with pytest.raises(NotAuthenticated, match="anna was revoked"):
        identify(sending(f"Bearer {token}"))


@pytest.mark.parametrize("values", [(), ("",), ("Basic YQ==",), ("Bearer a", "Bearer b"), (f"Bearer {'x' * 5000}",)])
def test_a_call_needs_exactly_one_token(tmp_path: Path, values: tuple[str, ...]) -> None:
    with pytest.raises(NotAuthenticated, match="--token-file"):
        TokenIdentity(Tokens(tmp_path), Revocations(tmp_path))(sending(*values))
