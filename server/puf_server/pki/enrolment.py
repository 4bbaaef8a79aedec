"""`puf-server certs watch`: signs the requests that are handed in at a directory, for clients that start by themselves.

    DESK/NAME.csr       handed in by `puf-client enroll --through DESK`; taken away when it is answered
    DESK/NAME.crt       the certificate
    DESK/NAME.refused   or, in one line, why there is none
    DESK/ca.crt         the authority's own

Whoever may write there becomes a client: the directory is the permission. A name that has a certificate gets another only
for the key it had; keys never come here. The authority's key stays with this process, away from the server's.
"""

from __future__ import annotations

import re
from pathlib import Path

from puf_common.errors import PufError, UsageError
from puf_common.files.private import write_over
from puf_common.logging import get_logger
from puf_common.names import NAME
from puf_server.pki.authority import LEAF_DAYS, Authority

__all__ = ["answer_all"]

_REQUEST = re.compile(rf"({NAME.pattern})\.csr")
_LARGEST = 64 * 1024

log = get_logger(__name__)


def answer_all(authority: Authority, desk: Path, days: float = LEAF_DAYS) -> list[str]:
    """Answers every request that lies there; the names that were."""
    own = desk / "ca.crt"
    ours = (authority.directory / "ca.crt").read_bytes()
    if not own.exists() or own.read_bytes() != ours:
        write_over(own, ours, mode=0o644)
    names = []
    for request in sorted(desk.iterdir()):
        found = _REQUEST.fullmatch(request.name)
        if found is None or request.is_symlink() or not request.is_file():
            continue
        names.append(found[1])
        _answer(authority, desk, found[1], days)
    return names


def _answer(authority: Authority, desk: Path, name: str, days: float) -> None:
    request = desk / f"{name}.csr"
    try:
        if request.stat().st_size > _LARGEST:
            raise UsageError("the request is too large to be one")
        known = (authority.directory / "clients" / f"{name}.crt").exists()
        issued = authority.sign(request, days, name=name, renew=known)
        write_over(desk / f"{name}.crt", issued.certificate.read_bytes(), mode=0o644)
        log.info("signed", client=name, serial=issued.serial, again=known)
    except PufError as error:
        log.warning("not signed", client=name, why=error.message)
        write_over(desk / f"{name}.refused", f"{error.message}\n".encode(), mode=0o644)
    request.unlink(missing_ok=True)
