"""Bytes that one client may have on disk."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.running import TINY

from puf_common.errors import TooMuch
from puf_common.tensors.manifest import UPDATE
from puf_server.core.config import Limits
from puf_server.core.state.rounds import ReceivedUpdate, Round, RoundKind, Step
from puf_server.ingest.quota import Quota

WHOLE = TINY.nbytes(UPDATE)


def a_round(**received: int) -> Round:
    updates = {
        f"{name}/main": ReceivedUpdate(digest="d", samples=1, nbytes=n, train_loss=None, samples_processed=1, at=0.0)
        for name, n in received.items()
    }
    return Round(number=1, attempt=1, kind=RoundKind.TRAIN, step=Step(base=0), lr=0.1, opened_at=0.0, received=updates)


def test_without_a_setting_a_client_has_room_for_four_updates() -> None:
    quota = Quota(Limits(), TINY)
    for upload in range(4):
        quota.reserve(upload, "a", a_round(), WHOLE)
    with pytest.raises(TooMuch, match=f"a has {4 * WHOLE} bytes"):
        quota.reserve(4, "a", a_round(), WHOLE)
    quota.reserve(5, "b", a_round(), WHOLE)
    quota.release(0)
    quota.reserve(6, "a", a_round(), WHOLE)


def test_updates_of_the_open_round_count_for_their_client_alone() -> None:
    quota = Quota(Limits(client_bytes=100), TINY)
    current = a_round(a=60, ab=1000)
    quota.reserve(1, "a", current, 40)
    with pytest.raises(TooMuch):
        quota.reserve(2, "a", current, 1)


def test_a_reservation_is_released_once() -> None:
    quota = Quota(Limits(client_bytes=100), TINY)
    quota.reserve(1, "a", a_round(), 50)
    quota.reserve(2, "a", a_round(), 50)
    quota.release(1)
    quota.release(1)
    with pytest.raises(TooMuch, match="a has 50 bytes"):
        quota.reserve(3, "a", a_round(), 51)
    quota.release(2)
    quota.reserve(3, "a", a_round(), 100)


def test_threads_release_a_reservation_once() -> None:
    quota = Quota(Limits(client_bytes=1000), TINY)
    quota.reserve(1, "a", a_round(), 10)
    quota.reserve(2, "a", a_round(), 10)
    with ThreadPoolExecutor(8) as pool:
        for done in [pool.submit(quota.release, 2) for _ in range(100)]:
            done.result()
    with pytest.raises(TooMuch, match="a has 10 bytes"):
        quota.reserve(3, "a", a_round(), 991)
