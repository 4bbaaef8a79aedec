"""`puf-server certs watch`: signs requests in a directory, for clients that start without an operator.

    DIR/NAME.csr       the request of `puf-client enroll --through DIR`; deleted after the answer
    DIR/NAME.crt       the certificate
    DIR/NAME.refused   or, in one line, the reason why there is none
    DIR/ca.crt         the authority's certificate

An account that can write to the directory can enrol a client. A name that has a certificate gets another one only for the
same key. Clients' keys are never in the directory. The authority's key stays in this process, apart from the server.
"""

from __future__ import annotations

import re
from pathlib import Path

from puf_common.errors import PufError, UsageError
from puf_common.files.private import write_over
from puf_common.logging import get_logger
from puf_common.names import NAME
from puf_server.pki.authority import LEAF_DAYS, Authority

_REQUEST = re.compile(rf"({NAME.pattern})\.csr")
_LARGEST = 64 * 1024

log = get_logger(__name__)


def answer_all(authority: Authority, directory: Path, days: float = LEAF_DAYS) -> list[str]:
    """Answers every request in the directory. Returns the names in them."""
    own = directory / "ca.crt"
    ours = (authority.directory / "ca.crt").read_bytes()
    if not own.exists() or own.read_bytes() != ours:
        write_over(own, ours, mode=0o644)
    names = []
    for request in sorted(directory.iterdir()):
        found = _REQUEST.fullmatch(request.name)
        if found is None or request.is_symlink() or not request.is_file():
            continue
        names.append(found[1])
        _answer(authority, directory, found[1], days)
    return names


def _answer(authority: Authority, directory: Path, name: str, days: float) -> None:
    request = directory / f"{name}.csr"
    try:
        if request.stat().st_size > _LARGEST:
            raise UsageError(f"the request has more than {_LARGEST} bytes")
        known = (authority.directory / "clients" / f"{name}.crt").exists()
        issued = authority.sign(request, days, name=name, renew=known)
        write_over(directory / f"{name}.crt", issued.certificate.read_bytes(), mode=0o644)
        log.info("request signed", client=name, serial=issued.serial, again=known)
    except PufError as error:
        log.warning("request refused", client=name, reason=error.message)
        write_over(directory / f"{name}.refused", f"{error.message}\n".encode(), mode=0o644)
    request.unlink(missing_ok=True)
