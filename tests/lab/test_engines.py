"""The same seeds give the same weights in one process, in real processes and on Ray, to the bit."""

from __future__ import annotations

from pathlib import Path

import pytest

from puf_common.exits import Exit
from puf_lab.cli import main

pytestmark = pytest.mark.e2e


def models(cache: Path) -> dict[str, bytes]:
    return {str(path.relative_to(cache)): path.read_bytes() for path in sorted(cache.glob("*/*.bin"))}


def test_the_same_bits_in_every_engine(tiny_file: Path, tmp_path: Path) -> None:
    found = {}
    for engine in ("in-process", "processes", "ray"):
        words = [str(tiny_file), "--targets", "0", "--methods", "natural,puf-regular", "--engine", engine]
        cache = tmp_path / engine
        assert main(["run", *words, "--cache", str(cache), "--out", str(tmp_path / "out")]) == Exit.OK
        found[engine] = models(cache)
    assert len(found["in-process"]) >= 2 + 3 + 3
    assert found["processes"] == found["in-process"]
    assert found["ray"] == found["in-process"]
