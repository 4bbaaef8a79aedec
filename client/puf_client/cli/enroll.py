"""`puf-client enroll`: creates a key that stays on this machine, and a request for the client's certificate."""

from __future__ import annotations

import time
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric import ec

from puf_client.options import EnrollOptions
from puf_common.config.exit_codes import Exit
from puf_common.errors import NotYours, Unavailable, UsageError
from puf_common.files.private import private_directory, write_new, write_over
from puf_common.names import check_name
from puf_common.network.certificates import key_pem, new_key, signing_request
from puf_common.network.tls import ClientTls, read_key

_POLL_SECONDS = 0.2


def run_enroll(options: EnrollOptions) -> Exit:
    """Writes key and request, and prints the next step."""
    name = options.name
    if not name:
        raise UsageError("this client needs a name: set --name")
    if options.through is not None:
        certificate = enroll_through(name, options.dir, options.through, patience=options.patience)
        print(f"{name} is enrolled: {certificate}")
        return Exit.OK
    key, request = enroll(name, options.dir, renew=options.renew)
    print(f"written: {key} (never send it anywhere) and {request}")
    print(f"next: the operator runs `puf-server certs sign {request.name} --name {name}` and sends back two files:")
    print(f"{name}.crt, for --tls-cert with --tls-key {key}, and ca.crt, for --tls-ca")
    return Exit.OK


def enroll(name: str, directory: Path, *, renew: bool = False) -> tuple[Path, Path]:
    """Writes NAME.key and NAME.csr and returns their paths. With `renew`, writes a new request for the existing key."""
    check_name(name)
    key_file, request_file = directory / f"{name}.key", directory / f"{name}.csr"
    if renew:
        key = read_key(key_file)
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise UsageError(f"{key_file} is not an ECDSA key: create the request with the tool that created the key")
        write_over(request_file, signing_request(key, name), mode=0o644)
        return key_file, request_file
    private_directory(directory)
    for path in (key_file, request_file):
        if path.exists():
            raise UsageError(f"{path} exists and is not overwritten; --renew writes a new request for the same key")
    key = new_key()
    write_new(key_file, key_pem(key))
    write_new(request_file, signing_request(key, name), mode=0o644)
    return key_file, request_file


def enroll_through(name: str, directory: Path, exchange: Path, *, patience: float) -> Path:
    """Writes the request to a directory that an authority watches, waits, and returns the certificate's path.

    An existing key and certificate are kept, so that a container can call this at every start.
    """
    check_name(name)
    certificate, authority = directory / f"{name}.crt", directory / "ca.crt"
    key_file, request_file = directory / f"{name}.key", directory / f"{name}.csr"
    if not certificate.exists() or not authority.exists():
        if not key_file.exists():
            enroll(name, directory)
        elif not request_file.exists():
            enroll(name, directory, renew=True)
        _answered(name, request_file.read_bytes(), exchange, patience)
        for target in (authority, certificate):
            try:
                content = (exchange / target.name).read_bytes()
            except OSError as error:
                raise UsageError(f"cannot read {exchange / target.name}: {error.strerror}") from None
            write_over(target, content, mode=0o644)
    # Raises if the key does not belong to the certificate.
    ClientTls.load(authority, certificate, key_file)
    return certificate


def _answered(name: str, request: bytes, exchange: Path, patience: float) -> None:
    """Returns when the authority has signed the request."""
    answer, refusal = exchange / f"{name}.crt", exchange / f"{name}.refused"
    try:
        refusal.unlink(missing_ok=True)
        write_over(exchange / f"{name}.csr", request, mode=0o644)
    except OSError as error:
        raise UsageError(f"cannot write the request to {exchange}: {error.strerror}") from None
    until = time.monotonic() + patience
    # The authority deletes the request after it has answered.
    while (exchange / f"{name}.csr").exists():
        if time.monotonic() > until:
            raise Unavailable(f"no authority signs requests in {exchange}; is `puf-server certs watch` running?")
        time.sleep(_POLL_SECONDS)
    if refusal.exists() or not answer.exists():
        why = refusal.read_text().strip() if refusal.exists() else "there is no certificate"
        raise NotYours(f"the authority did not sign the request of {name}: {why}", client=name)
