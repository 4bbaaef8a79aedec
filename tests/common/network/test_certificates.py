"""The identity in a certificate or a signing request."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization

from puf_common.errors import NotAuthenticated, UsageError
from puf_common.network.certificates import (
    common_name,
    holder_of,
    key_digest,
    key_pem,
    new_key,
    requested_name,
    server_names,
    signing_request,
    subject,
    uri,
)

NOW = datetime(2026, 11, 17, 12, tzinfo=UTC)


def certificate(common: str, *alternatives: x509.GeneralName) -> x509.Certificate:
    key = new_key()
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject(common))
        .issuer_name(subject("test"))
        .public_key(key.public_key())
        .serial_number(255)
        .not_valid_before(NOW - timedelta(days=1))
        .not_valid_after(NOW + timedelta(days=1))
    )
    if alternatives:
        builder = builder.add_extension(x509.SubjectAlternativeName(alternatives), False)
    return builder.sign(key, hashes.SHA256())


def named(*uris: str) -> list[x509.UniformResourceIdentifier]:
    return [x509.UniformResourceIdentifier(text) for text in uris]


def test_the_uri_names_role_and_holder() -> None:
    operator = holder_of(certificate("anna", *named("puf:operator:ada")))
    assert (operator.role, operator.name, operator.serial) == ("operator", "ada", "ff")
    assert holder_of(certificate("anna", *named("puf:client:clinic-7"))).role == "client"


def test_without_a_uri_the_common_name_is_a_client() -> None:
    foreign = certificate("clinic-7", *named("https://example.org/clinic"))
    assert (holder_of(foreign).role, holder_of(foreign).name) == ("client", "clinic-7")


@pytest.mark.parametrize(
    ("common", "uris", "says"),
    [
        ("", [], "names no client"),
        ("Clinic 7", [], "names no client"),
        ("a" * 64, ["puf:admin:ada"], "not of a kind"),
        ("a", ["puf:client:../b"], "not of a kind"),
        ("a", ["PUF:client:b"], "not of a kind"),
        ("a", ["puf:client:a", "puf:client:b"], "more than one name"),
    ],
)
def test_a_certificate_without_a_clear_name_is_refused(common: str, uris: list[str], says: str) -> None:
    made = certificate(common or "x y", *named(*uris))
    with pytest.raises(NotAuthenticated, match=says):
        holder_of(made)


def test_the_validity_is_checked_with_five_minutes_for_clocks() -> None:
    holder = holder_of(certificate("anna"))
    holder.require_current(NOW)
    holder.require_current(NOW - timedelta(days=1, minutes=4))
    with pytest.raises(NotAuthenticated, match="not valid before"):
        holder.require_current(NOW - timedelta(days=1, minutes=6))
    with pytest.raises(NotAuthenticated, match="expired on 2026-11-18"):
        holder.require_current(NOW + timedelta(days=1, seconds=1))


def test_a_signing_request_names_its_client() -> None:
    request = x509.load_pem_x509_csr(signing_request(new_key(), "clinic-7"))
    assert request.is_signature_valid
    assert requested_name(request) == "clinic-7"
    assert common_name(request.subject) == "clinic-7"


def test_a_request_for_an_operator_is_refused() -> None:
    key = new_key()
    alternatives = x509.SubjectAlternativeName(named(uri("operator", "ada")))
    builder = x509.CertificateSigningRequestBuilder().subject_name(subject("ada")).add_extension(alternatives, False)
    with pytest.raises(UsageError, match="only clients"):
        requested_name(builder.sign(key, hashes.SHA256()))


def test_server_names_are_alternative_names_or_the_common_name() -> None:
    import ipaddress

    local = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    assert server_names(certificate("x", x509.DNSName("localhost"), local)) == ["localhost", "127.0.0.1"]
    assert server_names(certificate("puf.example.org")) == ["puf.example.org"]


def test_all_certificates_of_a_key_have_its_digest() -> None:
    one, other = certificate("a"), certificate("a")
    assert key_digest(one) == key_digest(one)
    assert key_digest(one) != key_digest(other)


def test_a_key_is_stored_as_pem() -> None:
    key = new_key()
    loaded = serialization.load_pem_private_key(key_pem(key), password=None)
    assert loaded.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ) == key_pem(key)
