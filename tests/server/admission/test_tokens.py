"""Tokens are stored as hashes, expire, and are read again when a command changes them."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from puf_common.errors import NotAuthenticated, NotFound, StorageCorrupted, UsageError
from puf_server.admission.tokens import Tokens


def test_a_token_is_stored_as_a_hash_that_only_the_owner_may_read(tmp_path: Path) -> None:
    token = Tokens(tmp_path).add("anna", days=1)
    file = tmp_path / "tokens.json"
    assert file.stat().st_mode & 0o777 == 0o600
    assert token not in file.read_text()
    assert json.loads(file.read_text())["tokens"]["anna"]["sha256"] == hashlib.sha256(token.encode()).hexdigest()


def test_a_server_sees_changes_of_a_command_after_a_refresh(tmp_path: Path) -> None:
    serving, command = Tokens(tmp_path), Tokens(tmp_path)
    first = command.add("anna", days=1)
    with pytest.raises(NotAuthenticated, match="unknown"):
        serving.holder(first)
    before = serving.refresh()
    assert serving.holder(first) == "anna"
    assert serving.refresh() == before
    second = command.add("anna", days=1, replace=True)
    assert serving.refresh() != before
    assert serving.holder(second) == "anna"
    with pytest.raises(NotAuthenticated, match="unknown"):
        serving.holder(first)
    command.revoke("anna")
    serving.refresh()
    with pytest.raises(NotAuthenticated, match="unknown"):
        serving.holder(second)


def test_a_token_expires(tmp_path: Path) -> None:
    now = [1000.0]
    tokens = Tokens(tmp_path, lambda: now[0])
    token = tokens.add("anna", days=1)
    now[0] += 86_000
    assert tokens.holder(token) == "anna"
    now[0] += 1000
    with pytest.raises(NotAuthenticated, match="expired"):
        tokens.holder(token)


@pytest.mark.parametrize("days", [0, -1, float("nan"), float("inf"), 36_501])
def test_a_lifetime_that_is_over_at_once_or_too_long_is_refused(tmp_path: Path, days: float) -> None:
    with pytest.raises(UsageError, match="more than 0"):
        Tokens(tmp_path).add("anna", days)
    assert not (tmp_path / "tokens.json").exists()


def test_a_client_has_at_most_one_token(tmp_path: Path) -> None:
    tokens = Tokens(tmp_path)
    with pytest.raises(UsageError, match="no token to replace"):
        tokens.add("anna", 1, replace=True)
    tokens.add("anna", 1)
    with pytest.raises(UsageError, match="already has a token"):
        tokens.add("anna", 1)
    with pytest.raises(UsageError, match="cannot be a name"):
        tokens.add("../anna", 1)


def test_dropping_returns_the_names_that_had_a_token(tmp_path: Path) -> None:
    tokens = Tokens(tmp_path)
    for name in ("bert", "anna", "cleo"):
        tokens.add(name, 1)
    assert list(tokens.all()) == ["anna", "bert", "cleo"]
    # Another process holds the list in memory; dropping must work on the file.
    assert Tokens(tmp_path).drop(["anna", "cleo", "nora"]) == ["anna", "cleo"]
    assert tokens.drop(["anna"]) == []
    assert list(tokens.all()) == ["bert"]
    with pytest.raises(NotFound):
        tokens.revoke("anna")


def test_a_damaged_file_stops_a_start(tmp_path: Path) -> None:
    (tmp_path / "tokens.json").write_text('{"tokens": {"anna": {}}}')
    with pytest.raises(StorageCorrupted, match="damaged"):
        Tokens(tmp_path)
