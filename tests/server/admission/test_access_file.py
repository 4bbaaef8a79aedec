"""The file that operator commands on the server's machine read."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from tests.pki import Pki

from puf_common.errors import StorageCorrupted, UsageError
from puf_server.admission.access_file import OperatorAccess
from puf_server.pki.authority import ephemeral_access


def test_what_a_server_writes_a_command_reads(tmp_path: Path) -> None:
    access = OperatorAccess("127.0.0.1:7301")
    access.write(tmp_path)
    assert (tmp_path / "operator.json").stat().st_mode & 0o777 == 0o600
    assert OperatorAccess.read(tmp_path) == access
    assert access.tls() is None
    OperatorAccess.remove(tmp_path)
    OperatorAccess.remove(tmp_path)
    with pytest.raises(UsageError, match="no server serves"):
        OperatorAccess.read(tmp_path)


def test_under_tls_the_file_contains_an_operators_certificate(tmp_path: Path) -> None:
    certificate, key = ephemeral_access()[1]["operator"]
    server = Pki(tmp_path / "pki").server.certificate
    access = OperatorAccess("127.0.0.1:7301", str(server), certificate.decode(), key.decode())
    tls = access.tls()
    assert tls is not None
    holder = tls.holder()
    assert holder is not None
    assert holder.role == "operator"


@pytest.mark.parametrize("content", ["", "[]", '{"other": 1}', "{"])
def test_a_damaged_file_is_reported(tmp_path: Path, content: str) -> None:
    (tmp_path / "operator.json").write_text(content)
    with pytest.raises(StorageCorrupted, match="restart the server"):
        OperatorAccess.read(tmp_path)


def test_a_command_waits_for_a_server_that_is_starting(tmp_path: Path) -> None:
    (tmp_path / "federation.json").write_text("{}")
    reading = threading.Event()
    found: list[OperatorAccess] = []

    def read() -> None:
        reading.set()
        found.append(OperatorAccess.read(tmp_path, start_seconds=60))

    thread = threading.Thread(target=read)
    thread.start()
    assert reading.wait(10)
    OperatorAccess("here:1").write(tmp_path)
    thread.join(10)
    assert found == [OperatorAccess("here:1")]


def test_a_command_does_not_wait_in_a_directory_without_a_federation(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no server serves"):
        OperatorAccess.read(tmp_path, start_seconds=3600)
