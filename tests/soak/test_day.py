"""A short form of the soak test: the hours of a day with few clients."""

from __future__ import annotations

from pathlib import Path

from tests.soak.day import Day


def test_a_federation_runs_for_hours_with_rotations_backups_and_restores(tmp_path: Path) -> None:
    day = Day(tmp_path, clients=30, seed=1)
    day.run(8)
    day.close()
    assert day.counts["restores"] == 2
    assert day.counts["requests"] == 4
    assert day.counts["forgotten"] >= 3
    assert day.counts["tokens"] == day.counts["certificates"] == 80
    assert day.unfinished <= 1
    assert day.samples[-1]["round"] >= 28
    # The descriptors of a restored directory are those of the first.
    assert day.samples[-1]["files"] == day.samples[0]["files"]
