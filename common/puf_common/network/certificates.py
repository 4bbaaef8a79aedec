"""The identity in a certificate, and the keys and signing requests for one.

A certificate made for a federation names its holder by a URI among its alternative names: `puf:client:clinic-7`,
`puf:operator:ada` or `puf:viewer:wall`. A certificate without such a URI stands for the client in its common name, so
that a company can use certificates that it already has. An operator and a viewer always need the URI.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Literal, get_args

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from puf_common.errors import NotAuthenticated, UsageError
from puf_common.names import NAME

Role = Literal["client", "operator", "viewer"]

_ROLES: dict[str, Role] = {role: role for role in get_args(Role)}
_URI = re.compile(rf"puf:({'|'.join(_ROLES)}):({NAME.pattern})")


@dataclass(frozen=True)
class Holder:
    """The client, operator or viewer that a certificate stands for, and its validity."""

    role: Role
    name: str
    serial: str
    # SHA-256 of the public key: the same in all certificates for one key.
    key: str
    not_before: datetime
    not_after: datetime

    def require_current(self, now: datetime | None = None) -> None:
        """Raises NotAuthenticated outside the validity. A connection can outlive the dates that its handshake checked."""
        now = now or datetime.now(UTC)
        if now > self.not_after:
            raise NotAuthenticated(
                f"the certificate of {self.name} expired on {self.not_after:%Y-%m-%d}; renew it "
                "(puf-server certs client or sign, with --renew) and start again",
                client=self.name,
            )
        if now < self.not_before - timedelta(minutes=5):
            raise NotAuthenticated(f"the certificate of {self.name} is not valid before {self.not_before:%Y-%m-%d}")


def uri(role: Role, name: str) -> str:
    return f"puf:{role}:{name}"


def subject(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def common_name(name: x509.Name) -> str:
    found = name.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(found[0].value) if len(found) == 1 else ""


def holder_of(certificate: x509.Certificate) -> Holder:
    """The holder of the certificate. Raises NotAuthenticated if it names none, or more than one."""
    role, name = _named(certificate.extensions, certificate.subject)
    return Holder(
        role,
        name,
        f"{certificate.serial_number:x}",
        key_digest(certificate),
        certificate.not_valid_before_utc,
        certificate.not_valid_after_utc,
    )


def key_digest(certificate: x509.Certificate) -> str:
    encoding, form = serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    return hashlib.sha256(certificate.public_key().public_bytes(encoding, form)).hexdigest()


def requested_name(request: x509.CertificateSigningRequest) -> str:
    """The client that a signing request is for."""
    role, name = _named(request.extensions, request.subject)
    if role != "client":
        raise UsageError(f"the request asks for {role} {name}; only clients' requests are signed")
    return name


def _named(extensions: x509.Extensions, whole: x509.Name) -> tuple[Role, str]:
    try:
        alternatives = extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        uris = alternatives.get_values_for_type(x509.UniformResourceIdentifier)
    except x509.ExtensionNotFound:
        uris = []
    ours = [u for u in uris if u.lower().startswith("puf:")]
    if len(ours) > 1:
        raise NotAuthenticated("the certificate stands for more than one name")
    if ours:
        match = _URI.fullmatch(ours[0])
        if match is None:
            raise NotAuthenticated(f"the certificate's name {ours[0][:100]!r} is not of a kind that this version knows")
        return _ROLES[match[1]], match[2]
    name = common_name(whole)
    if not NAME.fullmatch(name):
        raise NotAuthenticated(
            f"the certificate names no client: its common name {name[:100]!r} must be 1 to 64 letters, digits, dots, "
            "dashes or underscores, or it needs the URI puf:client:NAME"
        )
    return "client", name


def server_names(certificate: x509.Certificate) -> list[str]:
    """The host names and addresses in a server's certificate."""
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return [common_name(certificate.subject)]
    return [*names.get_values_for_type(x509.DNSName), *map(str, names.get_values_for_type(x509.IPAddress))]


def new_key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


def key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def signing_request(key: ec.EllipticCurvePrivateKey, name: str) -> bytes:
    """A request to an authority for a client's certificate, in PEM."""
    alternatives = x509.SubjectAlternativeName([x509.UniformResourceIdentifier(uri("client", name))])
    request = x509.CertificateSigningRequestBuilder().subject_name(subject(name)).add_extension(alternatives, False)
    return request.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
