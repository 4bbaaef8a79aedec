"""Series for charts: few points, no round of forgetting lost."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from puf_server.dashboard.history import Point, series


def point(number: int, kind: str = "train", score: float | None = None, seconds: float | None = 2.0) -> Point:
    return Point(number, kind, score, seconds, 1.0, 10.0 * number, 20.0)


@given(count=st.integers(0, 5000), most=st.integers(1, 1000))
def test_a_chart_has_at_most_so_many_points_and_ends_with_the_newest_round(count: int, most: int) -> None:
    found = series([point(n) for n in range(1, count + 1)], most)
    assert len(found["rounds"]) <= most
    assert {len(found[key]) for key in ("score", "collecting", "summing", "up", "down")} == {len(found["rounds"])}
    assert found["rounds"][-1:] == ([count] if count else [])
    assert found["rounds"] == sorted(set(found["rounds"]))


def test_a_point_has_the_mean_of_its_rounds_and_their_last_score() -> None:
    points = [point(1, score=0.5), point(2, score=0.7), point(3), point(4, seconds=None)]
    found = series(points, 2)
    assert found["rounds"] == [2, 4]
    assert found["score"] == [0.7, None]
    assert found["collecting"] == [2.0, 2.0]
    assert found["up"] == [15.0, 35.0]
    assert found["rounds_per_point"] == 2


def test_rounds_that_forgot_are_marked() -> None:
    kinds = ("train", "unlearn", "recover", "reset", "rollback")
    found = series([point(n, kind) for n, kind in enumerate(kinds, 1)], 1)
    assert [mark["round"] for mark in found["marks"]] == [2, 4, 5]
