"""A federation that is trained once for all tests and test workers. Most tests begin with a copy of it."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from tests.e2e.federation import SETTING, Federation, opened, train

Reference = Callable[..., bytes]


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a trained and stopped federation: server state, client states and `model`."""
    base = tmp_path_factory.getbasetemp()
    # The directories of test workers have a common parent.
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    directory = shared / "trained"
    with open(shared / "trained.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (directory / "model").exists():
            shutil.rmtree(directory, ignore_errors=True)
            (directory / "model").write_bytes(train(directory))
    return directory


@pytest.fixture
def idle(trained: Path, tmp_path: Path) -> Iterator[Federation]:
    """A server process with a copy of the trained federation. No client has joined."""
    with opened(tmp_path / "federation", of=trained) as federation:
        yield federation


@pytest.fixture(scope="session")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Reference:
    """Computes the same federation in this process: the model after `targets` were forgotten."""
    from puf_lab.federations.in_process import InProcessFederation

    known: dict[tuple[object, ...], bytes] = {}

    def compute(targets: Sequence[int], mode: str = "regular") -> bytes:
        key = (*targets, mode)
        if key not in known:
            with InProcessFederation(SETTING, tmp_path_factory.mktemp("local")) as federation:
                federation.train()
                if targets:
                    federation.forget(targets, mode=mode)
                known[key] = bytes(federation.payload())
        return known[key]

    return compute
