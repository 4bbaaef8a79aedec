"""Files that get their name only when they are on disk."""

from __future__ import annotations

import errno
import hashlib
from pathlib import Path

import pytest

import puf_server.storage.durable
from puf_common.tensors.digests import digest
from puf_server.storage.durable import (
    Disk,
    FileSource,
    NewFile,
    new_file,
    remove,
    sync_directory,
    sync_file,
    unwritten,
)


class Recording(Disk):
    """Records the order of operations."""

    def __init__(self) -> None:
        self.done: list[str] = []

    def fsync(self, handle: int) -> None:
        self.done.append("fsync")
        super().fsync(handle)

    def rename(self, source: Path, target: Path) -> None:
        self.done.append(f"rename to {target.name}")
        super().rename(source, target)

    def fsync_dir(self, directory: Path) -> None:
        self.done.append(f"fsync of {directory.name}")
        super().fsync_dir(directory)


def test_a_published_file_is_synced_before_and_after_it_gets_its_name(tmp_path: Path) -> None:
    disk = Recording()
    file = NewFile(tmp_path / "x.part", disk)
    file.write(b"one")
    file.write(memoryview(b"two"))
    assert not (tmp_path / "x").exists()
    file.publish(tmp_path / "x")
    assert (tmp_path / "x").read_bytes() == b"onetwo"
    assert disk.done == ["fsync", "rename to x", f"fsync of {tmp_path.name}"]
    assert list(tmp_path.iterdir()) == [tmp_path / "x"]


def test_a_discarded_file_is_gone_and_may_be_discarded_again(tmp_path: Path) -> None:
    file = NewFile(tmp_path / "x.part")
    file.write(b"one")
    file.discard()
    file.discard()
    assert list(tmp_path.iterdir()) == []


def test_a_block_that_fails_leaves_the_old_content(tmp_path: Path) -> None:
    with new_file(tmp_path / "x") as file:
        file.write(b"old")

    def write() -> None:
        with new_file(tmp_path / "x") as file:
            file.write(b"new")
            raise KeyError("something else")

    with pytest.raises(KeyError):
        write()
    assert (tmp_path / "x").read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [tmp_path / "x"]


def test_a_failed_sync_ends_the_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(Disk):
        def fsync(self, handle: int) -> None:
            raise OSError(errno.EIO, "Input/output error")

        def fsync_dir(self, directory: Path) -> None:
            raise OSError(errno.EIO, "Input/output error")

    class EndedError(BaseException):
        pass

    def end(what: str, error: Exception) -> None:
        raise EndedError

    monkeypatch.setattr(puf_server.storage.durable, "end_process", end)
    with pytest.raises(EndedError):
        sync_file(0, tmp_path / "x", Broken())
    with pytest.raises(EndedError):
        sync_directory(tmp_path, Broken())
    file = NewFile(tmp_path / "x.part", Broken())
    with pytest.raises(EndedError):
        file.publish(tmp_path / "x")
    assert not (tmp_path / "x").exists()


def test_removing_a_file_that_is_gone_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"")
    remove(tmp_path / "x")
    remove(tmp_path / "x")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("number", "message"),
    [(errno.ENOSPC, "disk is full"), (errno.EDQUOT, "disk is full"), (errno.EIO, "cannot write its files")],
)
def test_a_failed_write_tells_what_was_not_stored(number: int, message: str) -> None:
    error = unwritten(OSError(number, "why"), "the update")
    assert message in error.message
    assert "the update was not stored" in error.message


def test_a_source_reads_the_payload_behind_its_offset(tmp_path: Path) -> None:
    content = bytes(range(200)) * 10_000
    (tmp_path / "x").write_bytes(b"header" + content)
    with FileSource(tmp_path / "x", 6) as source:
        assert source.nbytes == len(content)
        out = bytearray(10)
        source.read_into(190, memoryview(out))
        assert bytes(out) == content[190:200]
        assert source.digest() == hashlib.sha256(content).hexdigest()
        assert source.digest("blake3") == digest(content, "blake3").hex()
        with pytest.raises(OSError, match="ends 5 bytes early"):
            source.read_into(len(content) - 5, memoryview(out))
