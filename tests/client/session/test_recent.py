"""What a session keeps to answer a repeated assignment, and what makes it useless."""

from __future__ import annotations

from puf_client.session.recent import FetchedModel, Recent
from puf_client.session.update import LocalUpdate


def model(content: bytes) -> FetchedModel:
    return FetchedModel(memoryview(content), content)


def test_the_last_two_models_are_kept() -> None:
    recent = Recent()
    fetched: list[int] = []

    def get(version: int) -> FetchedModel:
        def fetch() -> FetchedModel:
            fetched.append(version)
            return model(b"%d" % version)

        return recent.model(version, fetch)

    for version in (1, 2, 1, 3, 1, 2):
        assert bytes(get(version).payload) == b"%d" % version
    assert fetched == [1, 2, 3, 2]


def test_a_restored_server_makes_models_and_updates_useless() -> None:
    """Versions and rounds repeat after a restored backup, with other weights."""
    recent = Recent()
    recent.model(3, lambda: model(b"before"))
    recent.add_update("round 4 from model 3", LocalUpdate(b"", 1, 0.0, 1))
    recent.outdate()
    # A training that ends after that began before it.
    recent.add_update("round 5 from model 3", LocalUpdate(b"", 1, 0.0, 1))
    assert recent.model(3, lambda: model(b"after")).digest == b"after"
    assert recent.update("round 4 from model 3") is None
    assert recent.update("round 5 from model 3") is None
