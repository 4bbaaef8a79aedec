"""Private files: complete or absent, readable by their owner alone, never overwritten by accident."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from puf_common.errors import UsageError
from puf_common.files.durable import Disk
from puf_common.files.new_file import NewFile, draft_path, published
from puf_common.files.private import create_once, exposed, private_directory, write_new, write_over


class FullDisk(Disk):
    """Creates files and accepts no bytes."""

    def write(self, handle: int, data: object) -> None:
        raise OSError(28, "No space left on device")


def test_a_new_file_is_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "key"
    write_new(path, b"secret")
    assert path.read_bytes() == b"secret"
    assert path.stat().st_mode & 0o777 == 0o600
    assert not exposed(path)
    path.chmod(0o644)
    assert exposed(path)
    assert not exposed(tmp_path / "absent")


def test_an_existing_file_is_not_overwritten_as_a_new_one(tmp_path: Path) -> None:
    path = tmp_path / "key"
    write_new(path, b"first")
    with pytest.raises(UsageError, match="exists already and is not overwritten"):
        write_new(path, b"second")
    assert path.read_bytes() == b"first"
    assert os.listdir(tmp_path) == ["key"]


def test_replacing_keeps_the_old_file_when_the_disk_is_full(tmp_path: Path) -> None:
    path = tmp_path / "tokens.json"
    write_over(path, b"old")
    with pytest.raises(OSError, match="No space left"):
        write_over(path, b"new", files=FullDisk())
    assert path.read_bytes() == b"old"
    write_over(path, b"new")
    assert path.read_bytes() == b"new"
    assert os.listdir(tmp_path) == ["tokens.json"]


def test_of_two_processes_that_create_a_file_one_wins(tmp_path: Path) -> None:
    path = tmp_path / "salt"

    def create(content: bytes) -> bool:
        try:
            create_once(path, content)
        except FileExistsError:
            return False
        return True

    contents = [bytes([n]) * 32 for n in range(8)]
    with ThreadPoolExecutor(8) as pool:
        won = list(pool.map(create, contents))
    assert won.count(True) == 1
    assert path.read_bytes() == contents[won.index(True)]
    assert os.listdir(tmp_path) == ["salt"]


def test_a_missing_directory_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot write to .*absent: No such file"):
        write_over(tmp_path / "absent" / "file", b"")
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match=r"cannot make .*file/below: File exists"):
        private_directory(tmp_path / "file" / "below")


def test_a_private_directory_is_for_its_owner_alone(tmp_path: Path) -> None:
    made = private_directory(tmp_path / "a" / "b")
    assert [p.stat().st_mode & 0o777 for p in (made, made.parent)] == [0o700, 0o700]


def test_a_file_whose_block_raises_never_appears(tmp_path: Path) -> None:
    target = tmp_path / "model"

    def interrupted() -> None:
        with published(NewFile(draft_path(target)), target) as file:
            file.write(b"half")
            raise KeyError

    with pytest.raises(KeyError):
        interrupted()
    assert not os.listdir(tmp_path)
