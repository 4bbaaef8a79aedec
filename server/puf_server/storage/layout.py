"""Paths and names in the state directory of a federation.

DIR/federation.json        the configuration and the manifest; made once by `puf-server init`
DIR/state.db               SQLite: roster, round, tickets, model versions, audit log
DIR/models/                one safetensors file per version, named by version and digest
DIR/history/               stored updates and sums of updates; only where the federation's method needs them
DIR/differences/           differences between models, made for clients; only with --plan-step-encoding
DIR/spool/                 updates of the open round; deleted when it commits
DIR/signing-key.pem        signs receipts; clients know its public half
DIR/lock                   held by the server that serves this directory
"""

from __future__ import annotations

import hashlib
import secrets
from pathlib import Path

from puf_server.core.state.rounds import HistoryRecord, Round

# The folders of all files that a database names.
MODELS, SPOOL, HISTORY, DIFFERENCES = FOLDERS = ("models", "spool", "history", "differences")
DATABASE = "state.db"
KEY_FILE = "signing-key.pem"


class Layout:
    """The paths of one state directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.database = directory / DATABASE
        self.signing_key = directory / KEY_FILE
        self.lock = directory / "lock"
        self.models, self.spool, self.history, self.differences = (directory / folder for folder in FOLDERS)


def draft_name(stem: str, owner: str) -> str:
    """The name of a file that is being written. It states the process that writes it, where there are several."""
    return f"{stem}.{owner}{secrets.token_hex(4)}.part"


def owner_of(name: str) -> str:
    """The process that writes a file with a name of `draft_name`; empty: the only one."""
    return name.removesuffix(".part").rpartition(".")[2][:-8]


def model_name(version: int, digest: str) -> str:
    """The file of a model version."""
    return f"v{version:06d}-{digest[:16]}.safetensors"


def difference_name(versions: tuple[int, int], digests: tuple[str, str]) -> str:
    """How the files of the difference between two models begin. The rest states kind and digest, after a dot."""
    return f"v{versions[0]:06d}-v{versions[1]:06d}-{digests[0][:16]}-{digests[1][:16]}"


def spool_name(current: Round, key: str, digest: str | None = None) -> str:
    """The file of one update. It contains the digest, so that a conflicting update cannot overwrite it."""
    digest = current.received[key].digest if digest is None else digest
    return f"{current.number}.{current.attempt}.{key.replace('/', '.')}.{digest[:32]}"


def arriving(client: str, upload: str = "") -> str:
    """How the names of a client's updates begin that are still arriving: of all of them, or of one upload."""
    begin = f"{SPOOL}/{_short(client)}-"
    return f"{begin}{_short(upload)}-" if upload else begin


def _short(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def history_name(record: HistoryRecord) -> str:
    """The file of a stored update or sum. It begins with the round, which marks files that a round is still writing."""
    return f"{record.round:08d}.{record.key.replace('/', '.')}-{record.digest[:16]}"
