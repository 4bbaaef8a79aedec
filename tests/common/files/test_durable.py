"""Writes to the disk are complete and in order, for every size."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from puf_common.files import durable
from puf_common.files.durable import DISK


@pytest.mark.parametrize("size", [0, 1, (1 << 17) - 1, 1 << 17, (1 << 20) + 3])
def test_large_writes_arrive_whole_and_in_order(tmp_path: Path, size: int) -> None:
    data = os.urandom(size)
    handle = DISK.create(tmp_path / "file")
    DISK.write(handle, memoryview(data))
    DISK.hasten(handle, 0, size)
    DISK.write(handle, b"end")
    DISK.fsync(handle)
    DISK.close(handle)
    assert (tmp_path / "file").read_bytes() == data + b"end"


def test_without_early_writing_the_sync_still_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(durable, "_SYNC_FILE_RANGE", None)
    handle = DISK.create(tmp_path / "file")
    DISK.write(handle, b"data")
    DISK.hasten(handle, 0, 4)
    DISK.fsync(handle)
    DISK.close(handle)
    assert (tmp_path / "file").read_bytes() == b"data"


def test_a_short_write_continues_and_a_failed_write_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle = DISK.create(tmp_path / "file")
    real = os.write
    left = [3, 2]

    def short(fd: int, data: memoryview) -> int:
        if not left:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(fd, data[: left.pop()])

    monkeypatch.setattr(os, "write", short)
    with pytest.raises(OSError, match="No space left"):
        DISK.write(handle, b"123456")
    DISK.close(handle)
    assert (tmp_path / "file").read_bytes() == b"12345"
