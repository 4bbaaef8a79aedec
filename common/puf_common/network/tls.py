"""TLS credentials of channels and servers from files, with a clear error for each problem.

A server checks its files at every new connection: a renewed certificate is used without a restart.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import grpc
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from grpc import aio

from puf_common.errors import PufError, UsageError
from puf_common.files.private import exposed
from puf_common.files.watched import Watched
from puf_common.logging import get_logger
from puf_common.network.certificates import Holder, holder_of, server_names

log = get_logger(__name__)


@dataclass(frozen=True)
class ClientTls:
    """The trusted authorities of a channel, and the client's own certificate and key. All in PEM."""

    roots: bytes = field(repr=False)
    certificate: bytes | None = field(default=None, repr=False)
    key: bytes | None = field(default=None, repr=False)
    # The expected name in the server's certificate, if it differs from the host of the address.
    server_name: str = ""

    @classmethod
    def load(
        cls, ca: Path | None, certificate: Path | None = None, key: Path | None = None, server_name: str = ""
    ) -> ClientTls:
        if ca is None:
            raise UsageError(
                "TLS needs --tls-ca: the certificate of the authority that signed the server's certificate"
            )
        roots = _roots(ca, "--tls-ca")
        if certificate is None and key is None:
            return cls(roots, server_name=server_name)
        if certificate is None or key is None:
            raise UsageError("--tls-cert and --tls-key go together: the certificate and its key")
        shown, secret, _ = _pair(certificate, key)
        return cls(roots, shown, secret, server_name)

    @classmethod
    def pinned(cls, server_certificate: Path, certificate: bytes, key: bytes) -> ClientTls:
        """Trusts this server only."""
        server = read_certificates(server_certificate)[0]
        return cls(_pem(server), certificate, key, server_names(server)[0])

    def holder(self) -> Holder | None:
        """The holder of the certificate; None without a certificate."""
        if self.certificate is None:
            return None
        try:
            return holder_of(x509.load_pem_x509_certificate(self.certificate))
        except PufError as error:
            raise UsageError(error.message) from None

    def channel(self, target: str, options: list[tuple[str, int]]) -> grpc.Channel:
        return grpc.secure_channel(target, self._credentials(), options=[*options, *self._names()])

    def aio_channel(self, target: str, options: list[tuple[str, int]]) -> aio.Channel:
        return aio.secure_channel(target, self._credentials(), options=[*options, *self._names()])

    def _credentials(self) -> grpc.ChannelCredentials:
        return grpc.ssl_channel_credentials(self.roots, self.key, self.certificate)

    def _names(self) -> list[tuple[str, str]]:
        return [("grpc.ssl_target_name_override", self.server_name)] if self.server_name else []


@dataclass(frozen=True)
class ServerTls:
    """A server's certificate and key and, for mTLS, the authorities whose certificates clients may show."""

    certificate: Path
    key: Path
    client_ca: Path | None = None
    # More authorities in PEM, besides those in `client_ca`.
    more_roots: bytes = b""

    def names(self) -> list[str]:
        return server_names(read_certificates(self.certificate)[0])

    def warn(self) -> None:
        """Logs problems that do not stop the server: an exposed key, a certificate that expires soon."""
        if exposed(self.key):
            log.warning("other users can read the server's key; run chmod 600 on it", file=str(self.key))
        left = _pair(self.certificate, self.key)[2].not_valid_after_utc - datetime.now(UTC)
        if left.days < 30:
            log.warning("the server's certificate expires soon", file=str(self.certificate), days=left.days)

    def credentials(self) -> grpc.ServerCredentials:
        """The credentials. Files that are wrong now raise UsageError. Files that are wrong later are logged and not used."""
        paths = [path.expanduser() for path in (self.certificate, self.key, self.client_ca) if path is not None]
        files = Watched(self._configuration, paths)

        def fetch() -> grpc.ServerCertificateConfiguration | None:
            try:
                if not files.refresh():
                    return None
            except (OSError, PufError) as error:
                log.error("TLS files changed and cannot be used; the previous files stay in use", error=str(error))
                return None
            log.info("TLS files read again", certificate=str(self.certificate))
            return files.value

        # gRPC documents None as "unchanged"; its stubs do not allow it.
        return grpc.dynamic_ssl_server_credentials(files.value, fetch, self._requests_certificates)  # type: ignore[arg-type]

    @property
    def _requests_certificates(self) -> bool:
        return self.client_ca is not None or bool(self.more_roots)

    def _configuration(self) -> grpc.ServerCertificateConfiguration:
        certificate, key, _ = _pair(self.certificate, self.key)
        roots = (_roots(self.client_ca, "--client-ca") if self.client_ca else b"") + self.more_roots
        return grpc.ssl_server_certificate_configuration([(key, certificate)], roots or None)


@dataclass(frozen=True)
class Refusal:
    """Why a TLS connection failed. `certain`: another attempt will fail, too."""

    sentence: str
    certain: bool


def refusal(details: str, target: str, *, tls: bool) -> Refusal | None:
    """The reason of a failed connection as far as it concerns TLS; None if it does not."""
    text = details.lower()
    if not tls:
        if "socket closed" in text or "connection reset" in text:
            return Refusal(
                f"the server at {target} closed a connection without TLS: it requires TLS, see --tls-ca", False
            )
        return None
    if "wrong_version_number" in text or "wrong version number" in text:
        return Refusal(f"the server at {target} runs without TLS: omit --tls-ca, or ask its operator", True)
    if "hostname verification" in text or "is not in peer certificate" in text:
        return Refusal(
            f"the certificate of the server at {target} is for another name: connect to a name in it, state the name with "
            "--tls-server-name, or issue it for this name too (puf-server certs server --name ...)",
            True,
        )
    if "certificate_verify_failed" in text:
        return Refusal(f"the server at {target} is not trusted: {_why_not(text)}", True)
    if "socket closed" in text or "connection reset" in text or "handshake" in text or "broken pipe" in text:
        return Refusal(
            f"the server at {target} ended the TLS handshake: it accepts only clients with a certificate of its authority "
            "(--tls-cert and --tls-key; not expired, not a server's), or it runs without TLS",
            False,
        )
    return None


def _why_not(text: str) -> str:
    if "has expired" in text:
        return "its certificate has expired; its operator renews it with `puf-server certs server --renew`"
    if "not yet valid" in text:
        return "its certificate is not valid yet; compare the clocks of both machines"
    return "its certificate was not signed by the authority in --tls-ca"


def read_certificates(path: Path) -> list[x509.Certificate]:
    """The certificates in a PEM file, at least one."""
    try:
        return x509.load_pem_x509_certificates(_read(path))
    except ValueError:
        raise UsageError(f"{path} is not a certificate in PEM form (-----BEGIN CERTIFICATE-----)") from None


def read_key(path: Path) -> PrivateKeyTypes:
    try:
        return serialization.load_pem_private_key(_read(path), password=None)
    except TypeError:
        raise UsageError(f"the key {path} has a password; store it without one, readable by its owner only") from None
    except ValueError:
        raise UsageError(f"{path} is not a private key in PEM form (-----BEGIN PRIVATE KEY-----)") from None


def _roots(path: Path, flag: str) -> bytes:
    """The trusted authorities in PEM. gRPC would accept an expired one without an error and refuse all peers."""
    found = read_certificates(path)
    now = datetime.now(UTC)
    if all(now > authority.not_valid_after_utc for authority in found):
        latest = max(authority.not_valid_after_utc for authority in found)
        raise UsageError(f"{flag} {path} expired on {latest:%Y-%m-%d}: a new authority is needed")
    return b"".join(map(_pem, found))


def _pair(certificate: Path, key: Path) -> tuple[bytes, bytes, x509.Certificate]:
    chain, secret = read_certificates(certificate), read_key(key)
    own, now = chain[0], datetime.now(UTC)
    if _public(own.public_key()) != _public(secret.public_key()):
        raise UsageError(f"{key} is not the key of the certificate {certificate}: use the key that was made with it")
    if now > own.not_valid_after_utc:
        raise UsageError(
            f"the certificate {certificate} expired on {own.not_valid_after_utc:%Y-%m-%d}: renew it "
            "(puf-server certs, with --renew)"
        )
    if now < own.not_valid_before_utc:
        raise UsageError(
            f"the certificate {certificate} is not valid before {own.not_valid_before_utc:%Y-%m-%d %H:%M} UTC: "
            "check the clock of this machine"
        )
    pem = secret.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return b"".join(map(_pem, chain)), pem, own


def _public(key: object) -> bytes:
    encoding, form = serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    return bytes(key.public_bytes(encoding, form))  # type: ignore[attr-defined]


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _read(path: Path) -> bytes:
    try:
        return path.expanduser().read_bytes()
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from None
