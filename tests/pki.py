"""Certificates for tests: valid ones, and ones with one fault."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization

from puf_common.network.certificates import key_pem, new_key, subject
from puf_common.network.tls import ClientTls, ServerTls, read_certificates
from puf_server.pki.authority import Authority, Issued


class Pki:
    def __init__(self, directory: Path, *names: str) -> None:
        self.directory = directory
        self.authority = Authority.create(directory, "test")
        self.ca = directory / "ca.crt"
        self.server = self.authority.server(names or ("localhost", "127.0.0.1"))

    def server_tls(self, *, mutual: bool = True) -> ServerTls:
        assert self.server.key is not None
        return ServerTls(self.server.certificate, self.server.key, self.ca if mutual else None)

    def client(self, name: str, *, ca: Path | None = None, server_name: str = "") -> ClientTls:
        return self.shown(self.authority.client(name), ca=ca, server_name=server_name)

    def operator(self, name: str = "ada") -> ClientTls:
        return self.shown(self.authority.operator(name))

    def viewer(self, name: str = "wall") -> ClientTls:
        return self.shown(self.authority.viewer(name))

    def shown(self, issued: Issued, *, ca: Path | None = None, server_name: str = "") -> ClientTls:
        return ClientTls.load(ca or self.ca, issued.certificate, issued.key, server_name)

    def without_certificate(self) -> ClientTls:
        return ClientTls.load(self.ca)

    def expire(self, file: Path) -> None:
        date_back(self.authority, file)

    def foreign(self, common_name: str) -> ClientTls:
        """A certificate of another authority: a common name and no URI of a federation."""
        key, own = new_key(), self.authority
        now = datetime.now(UTC)
        certificate = (
            x509.CertificateBuilder()
            .subject_name(subject(common_name))
            .issuer_name(own.certificate.subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(days=1))
            .not_valid_after(now + timedelta(days=1))
            .sign(own.key, hashes.SHA256())
        )
        return ClientTls(
            self.ca.read_bytes(), certificate.public_bytes(serialization.Encoding.PEM), key_pem(key), "localhost"
        )


def date_back(authority: Authority, file: Path) -> None:
    """Replaces a certificate by one that expired yesterday."""
    old = read_certificates(file)[0]
    builder = (
        x509.CertificateBuilder()
        .subject_name(old.subject)
        .issuer_name(old.issuer)
        .public_key(old.public_key())
        .serial_number(old.serial_number)
        .not_valid_before(datetime.now(UTC) - timedelta(days=30))
        .not_valid_after(datetime.now(UTC) - timedelta(days=1))
    )
    for extension in old.extensions:
        builder = builder.add_extension(extension.value, extension.critical)
    signed = builder.sign(authority.key, hashes.SHA256())
    file.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
