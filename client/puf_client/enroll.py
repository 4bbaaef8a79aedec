"""`puf-client enroll`: a key that never leaves this machine, and the request for a certificate to go with it."""

from __future__ import annotations

from pathlib import Path

from cryptography.hazmat.primitives.asymmetric import ec

from puf_client.names import check_name
from puf_common.certificates import key_pem, new_key, signing_request
from puf_common.errors import UsageError
from puf_common.private import private_directory, write_new, write_over
from puf_common.tls import read_key

__all__ = ["enroll"]


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
