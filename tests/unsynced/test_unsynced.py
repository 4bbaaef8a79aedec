"""The real server under a layer that loses unsynced writes. `make torture` runs many more kills of the same kind."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

from tests.unsynced.client_cut import ClientCut
from tests.unsynced.federation import Cut
from tests.unsynced.guarantees import Broken, Guarantee
from tests.unsynced.replay import Layer, compiled

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = compiled(tmp_path_factory.mktemp("library")) if sys.platform == "linux" else None
    if found is None:
        pytest.skip("needs Linux and a C compiler: install gcc to test the loss of unsynced writes")
    return found


@pytest.mark.timeout(280)
def test_nothing_acknowledged_is_lost_with_the_unsynced_writes_of_a_killed_server(
    tmp_path: Path, library: Path
) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "many").mkdir()
    undisturbed = Cut(tmp_path / "one", library, seed=0, kills=0).run()
    cut = Cut(tmp_path / "many", library, seed=1, kills=6)
    assert cut.run() == undisturbed
    assert cut.kills > 0
    assert cut.lost.total() > 0


@pytest.mark.timeout(200)
@pytest.mark.parametrize("kind", ["f", "d"])
def test_a_server_without_syncs_of_files_or_directories_is_found(kind: str, tmp_path: Path, library: Path) -> None:
    """The same kills on a server whose syncs have no effect lose an acknowledged join, or a file that the database names.

    The join was in the database's log. Its content is lost without syncs of files, its name without syncs of directories.
    """
    with pytest.raises(
        Broken, match=r"everything acknowledged is recorded|every recorded model and history file is there"
    ):
        Cut(tmp_path, library, seed=1, kills=12, without=kind).run()


@pytest.mark.timeout(120)
def test_a_client_process_loses_nothing_that_it_stored(tmp_path: Path, library: Path) -> None:
    cut = ClientCut(tmp_path, library, seed=1)
    cut.run()
    assert cut.kills > 0
    assert cut.lost.total() > 0


@pytest.mark.timeout(120)
@pytest.mark.parametrize(("kind", "guarantee"), [("f", Guarantee.OPENS), ("d", Guarantee.ACKNOWLEDGED)])
def test_a_client_process_without_syncs_is_found(
    kind: str, guarantee: Guarantee, tmp_path: Path, library: Path
) -> None:
    """Without syncs of files a file is empty after the power cut. Without syncs of directories it has no name."""
    with pytest.raises(Broken) as found:
        ClientCut(tmp_path, library, seed=1, without=kind).run()
    assert found.value.guarantee is guarantee


_SCRIPT = """
import os, sys
root = sys.argv[1]
def written(name, data, *, file=True, folder=True):
    handle = os.open(f"{root}/{name}.part", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    os.write(handle, data)
    if file:
        os.fsync(handle)
    os.close(handle)
    os.rename(f"{root}/{name}.part", f"{root}/{name}")
    if folder:
        at = os.open(root, os.O_RDONLY)
        os.fsync(at)
        os.close(at)
written("safe", b"s" * 9000)
written("no-data", b"d" * 9000, file=False)
written("no-name", b"n" * 9000, folder=False)
"""


def test_the_layer_loses_exactly_what_was_not_synced(tmp_path: Path, library: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    layer = Layer(root, library)
    subprocess.run([sys.executable, "-c", _SCRIPT, str(root)], env=os.environ | layer.environment, check=True)
    assert not layer.differences()
    assert len(list(root.iterdir())) == 3
    # Random(1) loses everything that is not durable.
    lost = layer.crash(Random(1))
    assert {p.name: p.read_bytes() for p in root.iterdir()} == {"safe": b"s" * 9000, "no-data": b""}
    assert lost == {"w": 1, "c": 1, "r": 1}
