from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

import pytest

from puf_common.errors import UsageError
from puf_lab.demo.picture import Curve, accuracy_curve

RUN = Curve([0, 1, 2, 3, 4], [10.0, 60.0, 75.0, 40.0, 74.0], [10.0, 80.0, 99.0, 20.0, 76.0])


@pytest.mark.parametrize("suffix", ["png", "svg", "pdf"])
def test_the_suffix_selects_the_format(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"curve.{suffix}"
    accuracy_curve(
        path, curve=RUN, forgotten_at=3, retrained_test=75.0, retrained_forget=75.1,
        natural=Curve([0, 1, 2, 3, 4], [10, 60, 75, 76, 76], [10, 80, 99, 99, 99]), title="t", subtitle="s",
    )  # fmt: skip
    start = {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}[suffix]
    assert path.read_bytes().startswith(start)


def test_one_point_and_missing_values_can_be_drawn(tmp_path: Path) -> None:
    accuracy_curve(tmp_path / "one.png", curve=Curve([1], [50.0], [50.0]), forgotten_at=1)
    accuracy_curve(tmp_path / "nan.png", curve=Curve([1, 2], [50.0, math.nan], [50.0, 1.0]), forgotten_at=2)


def test_curves_of_unequal_length_are_refused() -> None:
    with pytest.raises(UsageError):
        Curve([1, 2], [50.0], [50.0, 60.0])
    with pytest.raises(UsageError):
        Curve([], [], [])


def test_importing_loads_neither_matplotlib_nor_rich() -> None:
    program = (
        "import sys, puf_lab.demo.picture, puf_lab.demo.conclusion; print({'matplotlib', 'rich'} & {*sys.modules})"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "set()"
