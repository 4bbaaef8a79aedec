"""The wheel contains every file of the packages, also those that are not Python; the images are made from such wheels."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = {"common": "puf_common", "server": "puf_server", "client": "puf_client", "lab": "puf_lab"}


def wheel_files(parts: tuple[str, ...], folder: Path) -> set[str]:
    """Files of a wheel built from a copy of the tree with these parts only, as the Dockerfiles do."""
    source = folder / "source"
    source.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy2(ROOT / name, source / name)
    for part in parts:
        shutil.copytree(ROOT / part, source / part, ignore=shutil.ignore_patterns("__pycache__"))
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder / "dist")]
    subprocess.run(command, cwd=source, check=True, capture_output=True)
    (wheel,) = (folder / "dist").glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        return {name for name in archive.namelist() if ".dist-info/" not in name}


@pytest.mark.parametrize("parts", [("common", "server"), ("common", "client"), tuple(PACKAGES)], ids="-".join)
def test_a_wheel_contains_all_files_of_its_parts(parts: tuple[str, ...], tmp_path: Path) -> None:
    wanted = {
        path.relative_to(ROOT / part).as_posix()
        for part in parts
        for path in (ROOT / part / PACKAGES[part]).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert [name for name in wanted if name.endswith(".html")]
    assert wheel_files(parts, tmp_path) == wanted
