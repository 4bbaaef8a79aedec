"""A value from a file changes when the file changes."""

from __future__ import annotations

from pathlib import Path

import pytest

from puf_common.files.private import write_over
from puf_common.files.watched import Watched


def test_a_file_is_read_again_only_after_it_changed(tmp_path: Path) -> None:
    path, reads = tmp_path / "file", [0]

    def read() -> bytes:
        reads[0] += 1
        return path.read_bytes()

    path.write_bytes(b"one")
    file = Watched(read, [path])
    assert not file.refresh()
    write_over(path, b"two")
    assert file.refresh()
    assert (file.value, reads) == (b"two", [2])


def test_the_value_stays_when_the_file_cannot_be_read(tmp_path: Path) -> None:
    path = tmp_path / "number"
    path.write_text("1")
    file = Watched(lambda: int(path.read_text()), [path])
    write_over(path, b"none")
    with pytest.raises(ValueError, match="invalid literal"):
        file.refresh()
    assert file.value == 1
    # The same content is not read a second time.
    assert not file.refresh()
    path.unlink()
    with pytest.raises(FileNotFoundError):
        file.refresh()
    write_over(path, b"2")
    assert file.refresh()
    assert file.value == 2


def test_a_value_that_this_process_wrote_is_not_read_again(tmp_path: Path) -> None:
    path = tmp_path / "file"
    file = Watched(lambda: path.exists(), [path])
    write_over(path, b"")
    file.replaced(True)
    assert not file.refresh()
    assert file.value
