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
    shares = [quota.reserve("a", a_round(), WHOLE) for _ in range(4)]
    with pytest.raises(TooMuch, match=f"a has {4 * WHOLE} bytes"):
        quota.reserve("a", a_round(), WHOLE)
    quota.reserve("b", a_round(), WHOLE)
    shares[0].release()
    quota.reserve("a", a_round(), WHOLE)


def test_updates_of_the_open_round_count_for_their_client_alone() -> None:
    quota = Quota(Limits(client_bytes=100), TINY)
    current = a_round(a=60, ab=1000)
    quota.reserve("a", current, 40)
    with pytest.raises(TooMuch):
        quota.reserve("a", current, 1)


def test_a_share_is_released_once() -> None:
    quota = Quota(Limits(client_bytes=100), TINY)
    first, second = quota.reserve("a", a_round(), 50), quota.reserve("a", a_round(), 50)
    first.release()
    first.release()
    assert quota.arriving["a"] == 50
    second.release()
    assert "a" not in quota.arriving


def test_threads_release_a_share_once() -> None:
    quota = Quota(Limits(client_bytes=1000), TINY)
    quota.reserve("a", a_round(), 10)
    share = quota.reserve("a", a_round(), 10)
    with ThreadPoolExecutor(8) as pool:
        for done in [pool.submit(share.release) for _ in range(100)]:
            done.result()
    assert quota.arriving["a"] == 10
