"""One token per client, for federations that serve TLS without client certificates.

    DIR/tokens.json     name -> SHA-256 of its token, and until when it is valid

A token is random and has 256 bits, so its plain hash cannot be inverted; salt and key stretching would add nothing.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Callable
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from puf_common.errors import NotAuthenticated, NotFound, UsageError
from puf_common.names import check_name
from puf_server.admission.list_file import ListFile

DAY = 86400.0


class Token(BaseModel):
    """What is stored about a client's token."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    sha256: str
    made_at: float
    expires_at: float


class TokenList(BaseModel):
    """The content of the file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    tokens: dict[str, Token] = {}


class Tokens(ListFile[TokenList]):
    """The tokens of one federation."""

    def __init__(self, directory: Path, clock: Callable[[], float] = time.time) -> None:
        super().__init__(directory / "tokens.json", TokenList)
        self._clock = clock

    def all(self) -> dict[str, Token]:
        """Every token by client name, sorted."""
        return dict(sorted(self.value.tokens.items()))

    def add(self, name: str, days: float, *, replace: bool = False) -> str:
        """A new token for the name, valid for so many days. The token itself is not stored."""
        check_name(name)
        if not 0 < days <= 36_500:
            raise UsageError("the lifetime of a token must be more than 0 and at most 36500 days")
        with self.locked() as known:
            if replace and name not in known.tokens:
                raise UsageError(f"{name} has no token to replace")
            if not replace and name in known.tokens:
                raise UsageError(f"{name} already has a token")
            token, now = f"puf_{secrets.token_urlsafe(32)}", self._clock()
            made = Token(sha256=_hash(token), made_at=now, expires_at=now + days * DAY)
            self.write(TokenList(tokens={**known.tokens, name: made}))
        return token

    def revoke(self, name: str) -> None:
        """Deletes the token of a client; raises NotFound if it has none."""
        if not self.drop([name]):
            raise NotFound(f"{name} has no token")

    def drop(self, names: list[str]) -> list[str]:
        """Deletes the tokens of these clients. Returns the names that had one. Blocks until the file's lock is free."""
        self.refresh()
        if not any(name in self.value.tokens for name in names):
            return []
        with self.locked() as known:
            gone = [name for name in names if name in known.tokens]
            self.write(TokenList(tokens={n: t for n, t in known.tokens.items() if n not in gone}))
        return gone

    def holder(self, token: str) -> str:
        """The client that this token belongs to, or NotAuthenticated.

        Comparing hashes by equality reveals nothing about the tokens that exist.
        """
        wanted = _hash(token)
        for name, known in self.value.tokens.items():
            if known.sha256 == wanted:
                if self._clock() > known.expires_at:
                    raise NotAuthenticated(
                        f"the token of {name} has expired; ask the operator for another", client=name
                    )
                return name
        raise NotAuthenticated("the token is unknown: it was revoked or replaced, or is of another federation")


def _hash(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()
