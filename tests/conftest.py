"""Settings and fixtures of all tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import settings

from tests.object_store import ObjectStore
from tests.postgres import Postgres, programs

# A busy machine must not make a test fail.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """A PostgreSQL of this session."""
    found = programs()
    if found is None:
        pytest.skip("PostgreSQL is not installed: install Debian's package `postgresql` to run this test")
    with Postgres(found) as running:
        yield running


@pytest.fixture(scope="session")
def object_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectStore]:
    """An object store of this session."""
    with ObjectStore(tmp_path_factory.mktemp("object-store")) as running:
        yield running


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest) -> str:
    """The address of a new database; empty for SQLite in the state directory."""
    if request.param == "sqlite":
        return ""
    running: Postgres = request.getfixturevalue("postgres")
    return running.address()
