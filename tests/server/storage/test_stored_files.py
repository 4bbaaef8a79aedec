"""Files in a directory, in an object store, and of a simulation obey the same rules."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.object_store import ObjectStore

from puf_server.storage.directory_files import DirectoryFiles
from puf_server.storage.durable import DISK, UNSYNCED
from puf_server.storage.object_files import ObjectFiles
from puf_server.storage.simulated import UpdatesInMemory
from puf_server.storage.stored_files import StoredFiles

# More than one part of an upload, and the last part is not full.
LARGE = bytes(range(251)) * 40_000
SMALL = b"the payload of an update"


@pytest.fixture(params=["directory", "objects", "simulated"])
def reopen(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], StoredFiles]:
    """Opens the same files, as a process that starts."""
    if request.param == "directory":
        return lambda: DirectoryFiles(tmp_path, DISK)
    if request.param == "simulated":
        simulated = UpdatesInMemory(DirectoryFiles(tmp_path, UNSYNCED))
        return lambda: simulated
    store: ObjectStore = request.getfixturevalue("object_store")
    url = store.bucket()
    return lambda: ObjectFiles(url, tmp_path)


@pytest.fixture
def files(reopen: Callable[[], StoredFiles]) -> StoredFiles:
    return reopen()


def stored(files: StoredFiles, name: str, content: bytes) -> None:
    file = files.new(name)
    for at in range(0, len(content), 1 << 20):
        file.write(content[at : at + (1 << 20)])
    file.publish(name)


def content(files: StoredFiles, name: str, last: int | None = None) -> bytes:
    with files.read(name, last) as source:
        whole = bytearray(source.nbytes)
        source.read_into(0, memoryview(whole))
        assert b"".join(bytes(block) for block in source.blocks()) == whole
        assert source.digest() == hashlib.sha256(whole).hexdigest()
        return bytes(whole)


@pytest.mark.parametrize("payload", [b"", SMALL, LARGE], ids=["empty", "small", "large"])
def test_a_published_file_has_the_bytes_that_were_written(reopen: Callable[[], StoredFiles], payload: bytes) -> None:
    stored(reopen(), "models/v000001-ab.safetensors", payload)
    again = reopen()
    assert again.exists("models/v000001-ab.safetensors")
    assert content(again, "models/v000001-ab.safetensors") == payload
    assert content(again, "models/v000001-ab.safetensors", min(5, len(payload))) == payload[-5:]
    assert again.names() == ["models/v000001-ab.safetensors"]


def test_ranges_are_read_in_any_order_and_not_beyond_the_end(files: StoredFiles) -> None:
    stored(files, "spool/1.1.a.main.ff", LARGE)
    with files.read("spool/1.1.a.main.ff", len(LARGE) - 7) as source:
        for begin, nbytes in ((0, 4), (4, 8), (9_000_000, 700_000), (3, 1), (300_000, 300_000), (262_143, 3), (5, 0)):
            out = bytearray(nbytes)
            source.read_into(begin, memoryview(out))
            assert out == LARGE[7 + begin : 7 + begin + nbytes]
        with pytest.raises(OSError, match="early"):
            source.read_into(source.nbytes - 1, memoryview(bytearray(2)))


def test_a_file_that_is_not_published_has_no_name(reopen: Callable[[], StoredFiles]) -> None:
    files = reopen()
    kept, dropped = files.new("spool/arriving"), files.new("spool/arriving")
    for file in (kept, dropped):
        file.write(SMALL)
    dropped.discard()
    dropped.discard()
    assert not [name for name in files.names() if not name.endswith(".part")]
    kept.publish("spool/a")
    kept.discard()
    assert reopen().names() == ["spool/a"]


def test_a_new_file_replaces_the_old_one_at_once(files: StoredFiles) -> None:
    stored(files, "spool/a", LARGE)
    new = files.new("spool/a")
    new.write(SMALL)
    assert content(files, "spool/a") == LARGE
    new.publish("spool/a")
    assert content(files, "spool/a") == SMALL


def test_deleted_files_are_gone_and_others_stay(reopen: Callable[[], StoredFiles]) -> None:
    files = reopen()
    for name in ("models/a", "spool/a", "spool/ab", "history/a", "completed.json"):
        stored(files, name, SMALL)
    assert files.names("spool") == ["spool/a", "spool/ab"]
    files.delete(["spool/a"])
    files.delete(["spool/a", "spool/never"])
    assert sorted(files.names()) == ["history/a", "models/a", "spool/ab"]
    assert not files.exists("spool/a")
    with pytest.raises(FileNotFoundError):
        files.read("spool/a")
    files.delete(files.names())
    assert reopen().names() == []
    assert content(files, "completed.json") == SMALL


def test_messages_say_where_a_file_is(files: StoredFiles, tmp_path: Path) -> None:
    assert files.where("spool/a").startswith((str(tmp_path), "s3://puf-"))
    assert files.where("spool/a").endswith("/spool/a")
