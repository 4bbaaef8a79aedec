"""Prostate MRI of six sites (Liu et al. 2020) from its public layout, a folder per site:

    DIR/BIDMC/Case00.nii.gz  DIR/BIDMC/Case00_segmentation.nii.gz  ...  DIR/UCL/...

A client is a site, a group is a case (a patient), a sample is a slice. A fixed split assigns every case either to the
training data or to the common test set, so that no patient is in both.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional
from torch.utils.data import ConcatDataset, Dataset, TensorDataset

from puf_client.data.api import ClientData, DataContext
from puf_client.data.partition import stream
from puf_common.errors import UsageError

_MASK = re.compile(r"(.+)_segmentation\.nii(\.gz)?$", re.IGNORECASE)
_SPLIT_SEED = 2020


@dataclass(frozen=True)
class _Options:
    directory: Path
    size: int
    test: float
    empty: bool
    per_client: int


def _options(ctx: DataContext) -> _Options:
    ctx.refuse_other_options("size", "test", "empty", "holdout", "per_client")
    if ctx.directory is None:
        raise UsageError("prostate needs --data-dir: the directory with one folder of NIfTI files per site")
    options = _Options(
        ctx.directory,
        ctx.option("size", 384),
        ctx.option("test", 0.2),
        ctx.option("empty", False),
        ctx.option("per_client", 0),
    )
    if options.size < 16 or options.size % 16:
        raise UsageError(f"data option size must be a multiple of 16, not {options.size}")
    if not 0 < options.test < 1:
        raise UsageError(f"data option test is a share of the cases between 0 and 1, not {options.test:g}")
    return options


def load(ctx: DataContext) -> ClientData:
    """Returns the training slices of one site. The option `holdout` is the share of its cases that is held out."""
    options = _options(ctx)
    sites = _sites(options.directory)
    if ctx.shards != len(sites):
        raise UsageError(f"{options.directory} has {len(sites)} sites ({', '.join(sites)}): use --shard I/{len(sites)}")
    site = sites[ctx.shard]
    _, cases = _split(options.directory, site, options.test)
    fraction = ctx.option("holdout", 0.2)
    held = min(max(round(fraction * len(cases)), 1), len(cases) - 1) if fraction else 0
    slices = [_case(options, site, case) for case in cases[held:]]
    ids = [f"{site}/{case}/{i:03d}" for case, (_, _, where) in zip(cases[held:], slices, strict=True) for i in where]
    cap = options.per_client or len(ids)
    train = TensorDataset(torch.cat([x for x, _, _ in slices])[:cap], torch.cat([y for _, y, _ in slices])[:cap])
    holdout = _joined(options, site, cases[:held]) if held else None
    return ClientData(train, holdout=holdout, ids=ids[:cap], groups=[name.rsplit("/", 1)[0] for name in ids[:cap]])


def test_set(ctx: DataContext) -> Dataset[Any]:
    """Returns the test cases of all sites."""
    options = _options(ctx)
    sites = _sites(options.directory)
    return ConcatDataset([_joined(options, site, _split(options.directory, site, options.test)[0]) for site in sites])


def _joined(options: _Options, site: str, cases: list[str]) -> TensorDataset:
    parts = [_case(options, site, case) for case in cases]
    return TensorDataset(torch.cat([x for x, _, _ in parts]), torch.cat([y for _, y, _ in parts]))


def _sites(directory: Path) -> list[str]:
    if not directory.is_dir():
        raise UsageError(f"there is no directory {directory}")
    sites = sorted(path.name for path in directory.iterdir() if path.is_dir() and _cases(directory, path.name))
    if not sites:
        raise UsageError(f"{directory} has no folder with NAME.nii.gz and NAME_segmentation.nii.gz in it")
    return sites


def _cases(directory: Path, site: str) -> dict[str, tuple[Path, Path]]:
    """Returns scan and mask by the name of the case."""
    found = {}
    for mask in sorted((directory / site).iterdir()):
        match = _MASK.match(mask.name)
        scans = [mask.with_name(f"{match[1]}.nii{end}") for end in (".gz", "")] if match else []
        scan = next((path for path in scans if path.exists()), None)
        if match and scan is not None:
            found[match[1]] = (scan, mask)
    return found


def _split(directory: Path, site: str, share: float) -> tuple[list[str], list[str]]:
    """Returns the cases for testing and for training, at least one of each, equal on every machine."""
    cases = sorted(_cases(directory, site))
    if len(cases) < 2:
        raise UsageError(f"site {site} has only one case; it needs at least one for training and one for testing")
    order = stream(_SPLIT_SEED, "prostate", site).permutation(len(cases))
    tested = min(max(round(share * len(cases)), 1), len(cases) - 1)
    shuffled = [cases[i] for i in order]
    return shuffled[:tested], shuffled[tested:]


@lru_cache(maxsize=256)
def _case(options: _Options, site: str, case: str) -> tuple[torch.Tensor, torch.Tensor, tuple[int, ...]]:
    """Returns slices (n, 1, size, size), masks (n, size, size) and slice numbers. The volume has mean 0 and deviation 1."""
    scan, mask = (_volume(path) for path in _cases(options.directory, site)[case])
    if scan.shape != mask.shape or scan.ndim != 3:
        raise UsageError(f"{site}/{case}: scan {scan.shape} and mask {mask.shape} must be volumes of one shape")
    low, high = np.percentile(scan, [0.5, 99.5])
    scan = np.clip(scan, low, high)
    scan = (scan - scan.mean()) / max(float(scan.std()), 1e-6)
    truth = mask > 0
    where = [i for i in range(scan.shape[2]) if options.empty or truth[:, :, i].any()]
    if not where:
        raise UsageError(f"{site}/{case}: the mask is empty")
    x = torch.from_numpy(scan[:, :, where].transpose(2, 0, 1)[:, None].astype(np.float32))
    y = torch.from_numpy(truth[:, :, where].transpose(2, 0, 1)[:, None].astype(np.float32))
    shape = (options.size, options.size)
    x = functional.interpolate(x, shape, mode="bilinear", antialias=True)
    y = functional.interpolate(y, shape, mode="nearest")
    return x, y[:, 0].long(), tuple(where)


def _volume(path: Path) -> NDArray[np.float32]:
    try:
        import nibabel
        from nibabel.filebasedimages import ImageFileError
    except ModuleNotFoundError:
        raise UsageError("the dataset prostate needs nibabel: pip install 'puf-fl[lab]'") from None
    try:
        return np.asarray(nibabel.load(path).dataobj, np.float32)
    except (OSError, ValueError, ImageFileError) as error:
        raise UsageError(f"cannot read {path}: {error}") from None
