"""Small volumes in the public layout: the data of a site, with no patient in both training and test data."""

from __future__ import annotations

from pathlib import Path

import nibabel
import numpy as np
import pytest
import torch

from puf_client import data
from puf_client.data import DataContext
from puf_client.tasks import Segmentation
from puf_common.errors import UsageError
from puf_common.models import module_tensors, networks

SITES = ("BIDMC", "HK", "UCL")


@pytest.fixture
def volumes(tmp_path: Path) -> Path:
    random = np.random.default_rng(1)
    for site in SITES:
        (tmp_path / site).mkdir()
        for case in range(5):
            scan = random.normal(200, 50, (24, 20, 4)).astype(np.float32)
            mask = np.zeros(scan.shape, np.uint8)
            mask[8:14, 6:12, 1:3] = 1 + case % 2
            for suffix, volume in (("", scan), ("_segmentation", mask)):
                image = nibabel.Nifti1Image(volume, np.eye(4))
                nibabel.save(image, tmp_path / site / f"Case{case:02d}{suffix}.nii.gz")
    return tmp_path


def context(directory: Path, shard: int = 0, **options: str) -> DataContext:
    return DataContext(shard, len(SITES), "iid", 1, directory, {"size": "32", **options})


def test_a_site_is_a_client_and_a_patient_a_group(volumes: Path) -> None:
    mine = data.load_data("prostate", context(volumes, 1))
    # One of five cases is for testing and one of the other four is held out. Each has two slices with prostate.
    assert (mine.samples, mine.holdout_samples, mine.augments) == (6, 2, False)
    assert mine.groups is not None
    assert all(name.startswith("HK/Case") for name in mine.ids)
    assert len(set(mine.groups)) == 3
    x, y = mine.train[0]
    assert (x.shape, y.shape, y.dtype) == ((1, 32, 32), (32, 32), torch.int64)
    assert set(y.unique().tolist()) == {0, 1}, "both labels of the two zones are the prostate"
    assert abs(float(x.mean())) < 0.5
    test = data.test_set("prostate", context(volumes))
    assert len(test) == 2 * len(SITES)  # type: ignore[arg-type]
    assert data.load_data("prostate", context(volumes, 1, holdout="0", empty="true")).samples == 16
    assert data.load_data("prostate", context(volumes, 1, holdout="0", per_client="3")).samples == 3
    assert mine.ids == data.load_data("prostate", context(volumes, 1)).ids


def test_a_network_can_train_on_the_slices(volumes: Path) -> None:
    model = networks.build("res-unet", {}, 1)
    assert module_tensors.manifest_of(model).parameters == 7_588_493
    x, y = data.load_data("prostate", context(volumes)).train[0]
    with torch.no_grad():
        output = model(x[None])
    scores = Segmentation().sample_scores(output, y[None])
    assert output.shape == (1, 2, 32, 32)
    assert 0 <= float(scores[0]) <= 1


def test_missing_files_and_options_are_explained(volumes: Path, tmp_path: Path) -> None:
    for ctx, says in [
        (DataContext(0, 2, "iid", 1, volumes), "has 3 sites .*: use --shard I/3"),
        (DataContext(0, 3), "prostate needs --data-dir"),
        (DataContext(0, 3, directory=tmp_path / "none"), "there is no directory"),
        (DataContext(0, 3, directory=volumes / "HK"), "has no folder with NAME.nii.gz"),
    ]:
        with pytest.raises(UsageError, match=says):
            data.load_data("prostate", ctx)
    with pytest.raises(UsageError, match="multiple of 16, not 30"):
        data.load_data("prostate", context(volumes, size="30"))
    for scan in (volumes / "BIDMC").glob("Case0?.nii.gz"):
        scan.write_bytes(b"no volume")
    with pytest.raises(UsageError, match=r"cannot read .*Case0\d\.nii\.gz"):
        data.load_data("prostate", context(volumes))
