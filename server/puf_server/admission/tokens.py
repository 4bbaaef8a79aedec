"""Who is let in and who no longer: two small files in the state directory, read again whenever they change.

    DIR/tokens.json     name -> SHA-256 of its token, and until when. The token itself is random, has 256 bits and is
                        shown once; a hash of it cannot be turned back, so salt and stretching would add nothing.
    DIR/revoked.json    names, keys and certificate serials that are refused

Commands write them, the running server reads them: a revocation needs neither a connection nor a restart.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Generic, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from puf_common.errors import NotAuthenticated, NotFound, PufError, StorageCorrupted, UsageError
from puf_common.files.private import write_over
from puf_common.files.watched import Watched
from puf_common.logging import get_logger
from puf_common.names import check_name
from puf_common.network.certificates import Holder

__all__ = ["Revocations", "Revoked", "Token", "TokenList", "Tokens"]

log = get_logger(__name__)

DAY = 86400.0


class Token(BaseModel):
    """What is known of a client's token."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    sha256: str
    made_at: float
    expires_at: float


class TokenList(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    tokens: dict[str, Token] = {}


class Revoked(BaseModel):
    """Refused names, keys (SHA-256) and serials, each with the time it was refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    names: dict[str, float] = {}
    keys: dict[str, float] = {}
    serials: dict[str, float] = {}

    @property
    def nobody(self) -> bool:
        return not (self.names or self.keys or self.serials)


M = TypeVar("M", bound=BaseModel)


class _Watched(Generic[M]):
    """A file as it is now. One that does not exist is empty; one that was damaged under a server changes nothing."""

    def __init__(self, path: Path, kind: type[M]) -> None:
        self.path = path
        self._kind = kind
        self._file = Watched(self._read, [path])

    def now(self) -> M:
        try:
            if self._file.refresh():
                log.info("read anew", file=self.path.name)
        except (PufError, OSError) as error:
            log.error("changed and cannot be read; what it said before holds", file=self.path.name, error=str(error))
        return self._file.value

    @contextmanager
    def locked(self) -> Iterator[M]:
        """The value, while no other command can change it."""
        try:
            directory = os.open(self.path.parent, os.O_RDONLY | os.O_DIRECTORY)
        except OSError as error:
            raise UsageError(f"{self.path.parent} is no state directory: {error.strerror}") from None
        try:
            fcntl.flock(directory, fcntl.LOCK_EX)
            yield self._read()
        finally:
            os.close(directory)

    def write(self, value: M) -> None:
        write_over(self.path, value.model_dump_json(indent=1).encode())
        self._file.replaced(value)

    def look(self) -> object:
        """Differs from what it was when the file has changed."""
        return self._file.stamps()

    def _read(self) -> M:
        try:
            return self._kind.model_validate(json.loads(self.path.read_bytes()))
        except FileNotFoundError:
            return self._kind()
        except PermissionError:
            raise UsageError(f"{self.path} belongs to somebody else: run this as the user who serves it") from None
        except (ValueError, ValidationError):
            raise StorageCorrupted(f"{self.path} is damaged; restore it from a backup", file=self.path) from None


class Tokens:
    """One token per client."""

    def __init__(self, directory: Path, clock: Callable[[], float] = time.time) -> None:
        self._file = _Watched(directory / "tokens.json", TokenList)
        self._clock = clock

    def seen(self) -> object:
        return self._file.look()

    def all(self) -> dict[str, Token]:
        return dict(sorted(self._file.now().tokens.items()))

    def add(self, name: str, days: float, *, replace: bool = False) -> str:
        """A new token for the name. It is returned once and stored nowhere."""
        check_name(name)
        with self._file.locked() as known:
            if (name in known.tokens) is not replace:
                raise UsageError(
                    f"{name} has no token to replace: puf-server tokens add {name}"
                    if replace
                    else f"{name} has a token already: puf-server tokens rotate {name} replaces it"
                )
            token, now = f"puf_{secrets.token_urlsafe(32)}", self._clock()
            made = Token(sha256=_hash(token), made_at=now, expires_at=now + days * DAY)
            self._file.write(TokenList(tokens={**known.tokens, name: made}))
        return token

    def revoke(self, name: str) -> None:
        with self._file.locked() as known:
            if name not in known.tokens:
                raise NotFound(f"{name} has no token")
            self._file.write(TokenList(tokens={n: t for n, t in known.tokens.items() if n != name}))

    def drop(self, names: list[str]) -> list[str]:
        """Forgets the tokens of these names, as far as they have any; returns whose they were."""
        if not any(name in self._file.now().tokens for name in names):
            return []
        with self._file.locked() as known:
            gone = [name for name in names if name in known.tokens]
            self._file.write(TokenList(tokens={n: t for n, t in known.tokens.items() if n not in gone}))
        return gone

    def holder(self, token: str) -> str:
        """Whose token it is. Looking for a hash by equality tells nothing about the tokens that exist."""
        wanted = _hash(token)
        for name, known in self._file.now().tokens.items():
            if known.sha256 == wanted:
                if self._clock() > known.expires_at:
                    raise NotAuthenticated(
                        f"the token of {name} has expired; ask the operator for another", client=name
                    )
                return name
        raise NotAuthenticated("the token is unknown: it was revoked or replaced, or is of another federation")


class Revocations:
    """Who is refused although certificate or token are in order."""

    def __init__(self, directory: Path, clock: Callable[[], float] = time.time) -> None:
        self._file = _Watched(directory / "revoked.json", Revoked)
        self._clock = clock

    def seen(self) -> object:
        return self._file.look()

    def all(self) -> Revoked:
        return self._file.now()

    def revoke(self, *, name: str = "", key: str = "", serial: str = "") -> None:
        """A client, everything made for a key, or one certificate."""
        now = self._clock()
        with self._file.locked() as known:
            self._file.write(
                Revoked(
                    names=known.names | ({name: now} if name else {}),
                    keys=known.keys | ({key: now} if key else {}),
                    serials=known.serials | ({serial: now} if serial else {}),
                )
            )

    def restore(self, *, name: str = "", key: str = "", serial: str = "") -> None:
        with self._file.locked() as known:
            for wanted, among in ((name, known.names), (key, known.keys), (serial, known.serials)):
                if wanted and wanted not in among:
                    raise NotFound(f"{wanted} is not revoked")
            self._file.write(
                Revoked(
                    names={n: at for n, at in known.names.items() if n != name},
                    keys={k: at for k, at in known.keys.items() if k != key},
                    serials={s: at for s, at in known.serials.items() if s != serial},
                )
            )

    def require(self, name: str, holder: Holder | None = None) -> None:
        """Raises for whoever is refused: by name, or by what it holds."""
        now = self._file.now()
        if name in now.names:
            raise NotAuthenticated(f"{name} was revoked by the operator", client=name)
        if holder is not None and (holder.serial in now.serials or holder.key in now.keys):
            raise NotAuthenticated(f"this certificate of {holder.name} was revoked by the operator", client=holder.name)


def _hash(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()
