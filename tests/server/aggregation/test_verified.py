"""Files that are hashed while threads sum them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from puf_common.tensors.manifest import UPDATE, Manifest, TensorSpec
from puf_server.aggregation import fold as folding
from puf_server.aggregation.fold import ArraySource, Contribution, NotFinite, Source, fold
from puf_server.aggregation.verified import DamagedFile, VerifiedSource
from puf_server.storage.durable import FileSource

# Many more blocks than threads.
SIZE = 1000
MANIFEST = Manifest(
    (
        TensorSpec("w", "f32", (SIZE,)),
        TensorSpec("mean", "f32", (70,), "buffer"),
        TensorSpec("b", "f32", (SIZE,)),
        TensorSpec("steps", "i64", (), "buffer"),
    )
)


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folding, "_BLOCK", 16)


class Files:
    """Five updates on disk. The first one is negated."""

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        self.base = np.arange(MANIFEST.nbytes("model") // 2, dtype="<u2").tobytes().replace(b"\x7f", b"\x00")
        self.paths = [directory / f"{i}.update" for i in range(5)]
        self.contents: list[bytes] = []
        for i, path in enumerate(self.paths):
            payload = bytearray(MANIFEST.nbytes(UPDATE))
            for view in MANIFEST.views(payload, UPDATE).values():
                view[...] = i + 1
            path.write_bytes(payload)
            self.contents.append(bytes(payload))
        self._stack = stack

    def opened(self) -> list[VerifiedSource]:
        return [
            VerifiedSource(
                self._stack.enter_context(FileSource(path)),
                str(path),
                hashlib.sha256(content).hexdigest(),
                "sha256",
                "k",
            )
            for path, content in zip(self.paths, self.contents, strict=True)
        ]

    def fold(self, sources: Sequence[Source]) -> bytes:
        out = bytearray()
        updates = [
            Contribution(client=f"c{i}", part="main", samples=1, source=source, negated=i == 0)
            for i, source in enumerate(sources)
        ]
        fold(MANIFEST, ArraySource(self.base), updates, out.extend)
        return bytes(out)


def test_a_verified_sum_has_the_same_bits(tmp_path: Path) -> None:
    with ExitStack() as stack:
        files = Files(tmp_path, stack)
        sources = files.opened()
        assert files.fold(sources) == files.fold([ArraySource(c) for c in files.contents])
        for source in sources:
            source.finish()


@pytest.mark.parametrize("at", [0, 4 * SIZE - 1, 4 * SIZE + 3, 8 * SIZE, -1])
@pytest.mark.parametrize("which", [0, 3])
def test_a_changed_byte_anywhere_is_found(tmp_path: Path, which: int, at: int) -> None:
    with ExitStack() as stack:
        files = Files(tmp_path, stack)
        content = bytearray(files.contents[which])
        content[at] ^= 1
        files.paths[which].write_bytes(content)
        sources = files.opened()
        files.fold(sources)
        damaged = sources.pop(which)
        with pytest.raises(DamagedFile, match=files.paths[which].name) as caught:
            damaged.finish()
        assert caught.value.key == "k"
        for source in sources:
            source.finish()


@pytest.mark.parametrize("element", [0, SIZE // 2, SIZE - 1])
def test_a_block_that_fails_leaves_no_thread_waiting(tmp_path: Path, element: int) -> None:
    with ExitStack() as stack:
        files = Files(tmp_path, stack)
        content = bytearray(files.contents[2])
        MANIFEST.views(content, UPDATE)["w"][element] = np.inf
        files.paths[2].write_bytes(content)
        with pytest.raises(NotFinite, match="c2"):
            files.fold(files.opened())


def test_a_file_that_cannot_be_read_leaves_no_thread_waiting(tmp_path: Path) -> None:
    with ExitStack() as stack:
        files = Files(tmp_path, stack)
        files.paths[3].write_bytes(files.contents[3][: 2 * SIZE])
        with pytest.raises(OSError, match="early"):
            files.fold(files.opened())
