"""A small certificate authority in a directory, for federations that have none.

    DIR/ca.crt  DIR/ca.key                 the authority; the key need not be on the server's machine
    DIR/server.crt  DIR/server.key         the server
    DIR/clients/NAME.crt [NAME.key]        a client; without a key if the client made its own
    DIR/operators/NAME.crt  NAME.key       an operator
    DIR/viewers/NAME.crt  NAME.key         a viewer, which can only read

No file is overwritten without --renew. A renewed certificate has the same name and key, so the identity stays the same.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID

from puf_common.errors import NotAuthenticated, UsageError
from puf_common.files.private import private_directory, write_new, write_over
from puf_common.names import check_name
from puf_common.network.certificates import Role, holder_of, key_pem, new_key, requested_name, subject, uri
from puf_common.network.tls import read_certificates, read_key

AUTHORITY_DAYS = 3650
LEAF_DAYS = 365
# The clocks of two machines can differ by this much.
_EARLIER = timedelta(minutes=5)


@dataclass(frozen=True)
class Issued:
    """The files of a new certificate. `key` is None if the key is not in this directory."""

    certificate: Path
    key: Path | None
    serial: str
    not_after: datetime


class _Named(NamedTuple):
    common: str
    alternatives: x509.SubjectAlternativeName
    purpose: x509.ObjectIdentifier


@dataclass(frozen=True)
class Authority:
    """An authority with its key. Every certificate of a federation is signed here."""

    directory: Path
    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @classmethod
    def create(cls, directory: Path, title: str, days: float = AUTHORITY_DAYS) -> Authority:
        """Makes a new authority in the directory."""
        private_directory(directory)
        for name in ("ca.crt", "ca.key"):
            if (directory / name).exists():
                raise UsageError(f"{directory / name} exists already and is not overwritten; choose another --dir")
        key = new_key()
        certificate = _self_signed(key, title, days)
        write_new(directory / "ca.key", key_pem(key))
        write_new(directory / "ca.crt", _pem(certificate), mode=0o644)
        return cls(directory, certificate, key)

    @classmethod
    def open(cls, directory: Path) -> Authority:
        """Opens the authority in the directory."""
        if not (directory / "ca.key").exists():
            raise UsageError(f"{directory} holds no authority: make one with puf-server certs init --dir {directory}")
        key = read_key(directory / "ca.key")
        certificate = read_certificates(directory / "ca.crt")[0]
        if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
            raise UsageError(f"ca.key in {directory} is not the key of ca.crt")
        if datetime.now(UTC) > certificate.not_valid_after_utc:
            raise UsageError(f"the authority in {directory} expired on {certificate.not_valid_after_utc:%Y-%m-%d}")
        return cls(directory, certificate, key)

    def server(
        self, names: Sequence[str], days: float = LEAF_DAYS, *, renew: bool = False, file: str = "server"
    ) -> Issued:
        """A certificate for the host names and addresses that are dialled. The server may listen elsewhere."""
        where = self.directory / check_name(file)
        if not names and renew:
            old = read_certificates(where.with_name(f"{file}.crt"))[0]
            alternatives = old.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        elif not names:
            raise UsageError("give every host name or address that clients dial: --name HOST, may be repeated")
        else:
            alternatives = x509.SubjectAlternativeName([_server_name(name) for name in names])
        named = _Named("puf-server", alternatives, ExtendedKeyUsageOID.SERVER_AUTH)
        return self._issue(where, named, days, renew)

    def client(self, name: str, days: float = LEAF_DAYS, *, renew: bool = False) -> Issued:
        """A certificate and key for a client."""
        return self._issue(self._place("client", name, renew), _holder("client", name), days, renew)

    def operator(self, name: str, days: float = LEAF_DAYS, *, renew: bool = False) -> Issued:
        """A certificate and key for an operator."""
        return self._issue(self._place("operator", name, renew), _holder("operator", name), days, renew)

    def viewer(self, name: str, days: float = LEAF_DAYS, *, renew: bool = False) -> Issued:
        """A certificate and key for a viewer."""
        return self._issue(self._place("viewer", name, renew), _holder("viewer", name), days, renew)

    def sign(
        self, file: Path, days: float = LEAF_DAYS, *, name: str = "", renew: bool = False, new_key: bool = False
    ) -> Issued:
        """A certificate for a signing request. Only the name and the public key of the request are used."""
        request = _request(file)
        try:
            wanted = requested_name(request)
        except NotAuthenticated as error:
            raise UsageError(f"{file}: {error.message}") from None
        if name and name != wanted:
            raise UsageError(f"{file} is for {wanted}, not for {name}; nothing was signed")
        where = self._place("client", wanted, renew)
        known = where.with_name(f"{wanted}.crt")
        had = read_certificates(known)[0].public_key() if renew and known.exists() else None
        if had is not None and had != request.public_key() and not new_key:
            raise UsageError(
                f"{file} has another key than {wanted}: the holder of that key would become {wanted}. "
                f"If this is intended, first revoke the old key (certs revoke --cert {known}), then add --new-key"
            )
        return self._write(where, None, self._leaf(request.public_key(), _holder("client", wanted), days), renew)

    def _place(self, role: Role, name: str, renew: bool) -> Path:
        where = private_directory(self.directory / f"{role}s") / check_name(name)
        certificate = where.with_name(f"{name}.crt")
        if renew and certificate.exists() and holder_of(read_certificates(certificate)[0]).name != name:
            raise UsageError(f"{certificate} belongs to another name")
        return where

    def _issue(self, where: Path, named: _Named, days: float, renew: bool) -> Issued:
        key_file = where.with_name(f"{where.name}.key")
        if renew:
            kept = read_key(key_file)
            if not isinstance(kept, ec.EllipticCurvePrivateKey):
                raise UsageError(f"{key_file} was not made by this authority")
            return self._write(where, None, self._leaf(kept.public_key(), named, days), True)
        key = new_key()
        return self._write(where, key, self._leaf(key.public_key(), named, days), False)

    def _write(
        self, where: Path, key: ec.EllipticCurvePrivateKey | None, certificate: x509.Certificate, renew: bool
    ) -> Issued:
        file, key_file = where.with_name(f"{where.name}.crt"), where.with_name(f"{where.name}.key")
        if renew:
            if not file.exists():
                raise UsageError(f"there is no {file} to renew: remove --renew")
            write_over(file, _pem(certificate), mode=0o644)
        else:
            for path in (file, key_file) if key is not None else (file,):
                if path.exists():
                    raise UsageError(f"{path} exists already; --renew makes a new certificate for the same key")
            if key is not None:
                write_new(key_file, key_pem(key))
            write_new(file, _pem(certificate), mode=0o644)
        made = key_file if key is not None or key_file.exists() else None
        return Issued(file, made, f"{certificate.serial_number:x}", certificate.not_valid_after_utc)

    def _local(self, role: Role) -> tuple[bytes, bytes]:
        """Certificate and key that are in no file."""
        own = new_key()
        return _pem(self._leaf(own.public_key(), _holder(role, "local"), AUTHORITY_DAYS)), key_pem(own)

    def _leaf(self, public: Any, named: _Named, days: float) -> x509.Certificate:
        builder = _builder(named.common, self.certificate.subject, public, days, self.certificate.not_valid_after_utc)
        own = self.certificate.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
        return (
            builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage([named.purpose]), critical=False)
            .add_extension(named.alternatives, critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(own), critical=False)
            .sign(self.key, hashes.SHA256())
        )


# A root, and certificate and key of an operator and of a viewer.
EphemeralAccess = tuple[bytes, dict[Role, tuple[bytes, bytes]]]


def ephemeral_access() -> EphemeralAccess:
    """A root, and certificate and key of an operator and of a viewer of one server process. The root's key is discarded."""
    key = new_key()
    authority = Authority(Path(), _self_signed(key, "this server process", AUTHORITY_DAYS), key)
    roles: tuple[Role, ...] = ("operator", "viewer")
    return _pem(authority.certificate), {role: authority._local(role) for role in roles}


def _holder(role: Role, name: str) -> _Named:
    alternatives = x509.SubjectAlternativeName([x509.UniformResourceIdentifier(uri(role, name))])
    return _Named(name, alternatives, ExtendedKeyUsageOID.CLIENT_AUTH)


def _self_signed(key: ec.EllipticCurvePrivateKey, title: str, days: float) -> x509.Certificate:
    return (
        _builder(title, subject(title), key.public_key(), days)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .sign(key, hashes.SHA256())
    )


def _builder(
    common: str, issuer: x509.Name, public: Any, days: float, latest: datetime | None = None
) -> x509.CertificateBuilder:
    if not 0 < days <= 36_500:
        raise UsageError("--days must be more than 0 and at most 36500")
    now = datetime.now(UTC).replace(microsecond=0)
    until = now + timedelta(days=days)
    return (
        x509.CertificateBuilder()
        .subject_name(subject(common))
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _EARLIER)
        # A certificate is not valid longer than its authority.
        .not_valid_after(min(until, latest) if latest else until)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _server_name(text: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(text.strip("[]")))
    except ValueError:
        pass
    if not text or not text.isascii() or any(c.isspace() or c in ":/@" for c in text):
        raise UsageError(f"--name {text!r} is neither a host name nor an address (give it without a port)")
    return x509.DNSName(text.lower())


def _request(file: Path) -> x509.CertificateSigningRequest:
    try:
        request = x509.load_pem_x509_csr(file.read_bytes())
    except OSError as error:
        raise UsageError(f"cannot read {file}: {error.strerror}") from None
    except ValueError:
        raise UsageError(f"{file} is not a signing request in PEM form (puf-client enroll makes one)") from None
    try:
        valid = request.is_signature_valid
    except (InvalidSignature, ValueError, TypeError):
        valid = False
    if not valid:
        raise UsageError(f"{file} is not signed with its own key")
    key = request.public_key()
    if not isinstance(key, ec.EllipticCurvePublicKey) and not (
        isinstance(key, rsa.RSAPublicKey) and key.key_size >= 2048
    ):
        raise UsageError(
            f"{file} has a key that is too weak or of an unknown kind: use ECDSA, or RSA with at least 2048 bits"
        )
    return request


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)
