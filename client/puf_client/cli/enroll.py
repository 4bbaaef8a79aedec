"""`puf-client enroll`: a key that never leaves this machine, and the request for a certificate to go with it."""

from __future__ import annotations

import time
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric import ec

from puf_common.errors import NotYours, Unavailable, UsageError
from puf_common.files.private import private_directory, write_new, write_over
from puf_common.names import check_name
from puf_common.network.certificates import key_pem, new_key, signing_request
from puf_common.network.tls import ClientTls, read_key

__all__ = ["enroll", "enroll_through"]

_LOOK_SECONDS = 0.2


def enroll(name: str, directory: Path, *, renew: bool = False) -> tuple[Path, Path]:
    """Writes NAME.key and NAME.csr. Renewing asks anew for the key that is there."""
    check_name(name)
    key_file, request_file = directory / f"{name}.key", directory / f"{name}.csr"
    if renew:
        key = read_key(key_file)
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise UsageError(f"{key_file} is no ECDSA key: make the request with the tool that made the key")
        write_over(request_file, signing_request(key, name), mode=0o644)
        return key_file, request_file
    private_directory(directory)
    for path in (key_file, request_file):
        if path.exists():
            raise UsageError(f"{path} exists already and is not overwritten; --renew asks anew for the same key")
    key = new_key()
    write_new(key_file, key_pem(key))
    write_new(request_file, signing_request(key, name), mode=0o644)
    return key_file, request_file


def enroll_through(name: str, directory: Path, desk: Path, *, patience: float) -> Path:
    """Hands the request in at a directory that an authority watches, and waits for the certificate. Repeating it is safe:
    key and certificate that are there are kept, so that a container may begin with it at every start."""
    check_name(name)
    certificate, authority = directory / f"{name}.crt", directory / "ca.crt"
    key_file, request_file = directory / f"{name}.key", directory / f"{name}.csr"
    if not certificate.exists() or not authority.exists():
        if not key_file.exists():
            enroll(name, directory)
        elif not request_file.exists():
            enroll(name, directory, renew=True)
        _answered(name, request_file.read_bytes(), desk, patience)
        write_over(authority, _read(desk / "ca.crt"), mode=0o644)
        write_over(certificate, _read(desk / f"{name}.crt"), mode=0o644)
    # Key and certificate belong together, or this says so.
    ClientTls.load(authority, certificate, key_file)
    return certificate


def _answered(name: str, request: bytes, desk: Path, patience: float) -> None:
    answer, refusal = desk / f"{name}.crt", desk / f"{name}.refused"
    try:
        refusal.unlink(missing_ok=True)
        write_over(desk / f"{name}.csr", request, mode=0o644)
    except OSError as error:
        raise UsageError(f"cannot hand in the request at {desk}: {error.strerror}") from None
    until = time.monotonic() + patience
    # The authority takes the request away when it has answered.
    while (desk / f"{name}.csr").exists():
        if time.monotonic() > until:
            raise Unavailable(f"nobody signs requests at {desk}; is `puf-server certs watch` running there?")
        time.sleep(_LOOK_SECONDS)
    if refusal.exists() or not answer.exists():
        why = refusal.read_text().strip() if refusal.exists() else "no certificate came"
        raise NotYours(f"the authority did not sign the request of {name}: {why}", client=name)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from None
