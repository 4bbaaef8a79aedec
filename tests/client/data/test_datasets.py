from __future__ import annotations

import hashlib
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

from puf_client import data
from puf_client.data import ClientData, DataContext
from puf_common.errors import UsageError


def _digits(shard: int = 0, shards: int = 4, partition: str = "iid", seed: int = 1, **options: str) -> ClientData:
    return data.load_data("digits", DataContext(shard, shards, partition, seed, None, options))


def _x(dataset: Any) -> torch.Tensor:
    assert isinstance(dataset, TensorDataset)
    return dataset.tensors[0]


def test_digits_by_name() -> None:
    mine = _digits()
    assert (mine.samples, mine.holdout_samples) == (200, 50)
    assert mine.train is mine.train_plain
    x, y = mine.train[0]
    assert x.shape == (1, 8, 8)
    assert (x.dtype, y.dtype) == (torch.float32, torch.int64)
    assert mine.ids[0].startswith("digits/train/")
    pool = torch.cat([_x(d) for s in range(4) for d in (_digits(s).train, _digits(s).holdout)])
    assert pool.shape == (1000, 1, 8, 8)
    assert abs(pool.mean().item()) < 1e-5
    assert abs(pool.std().item() - 1) < 1e-3


@pytest.mark.parametrize("partition", ["iid", "dirichlet:1", "hsu:1"])
def test_no_image_is_in_two_parts(partition: str) -> None:
    """Compares shards, their hold-outs and the test set. With noise, all images differ."""
    parts = [_digits(shard, partition=partition, noise="1.0") for shard in range(4)]
    test = data.test_set("digits", DataContext(2, 4, partition, 1, None, {"noise": "1.0"}))
    images = [_x(d) for part in parts for d in (part.train, part.holdout)] + [_x(test)]
    bits = [image.numpy().tobytes() for images_of in images for image in images_of]
    assert len(set(bits)) == len(bits)
    ids = [i for part in parts for i in part.ids]
    assert len(set(ids)) == len(ids)


def test_the_test_set_is_equal_for_all_clients() -> None:
    first, other = (_x(data.test_set("digits", DataContext(s, n, p))) for s, n, p in ((0, 4, "iid"), (6, 9, "hsu:1")))
    assert len(first) == 797
    assert torch.equal(first, other)
    clean = _x(data.test_set("digits", DataContext(seed=5)))
    assert torch.equal(first, clean), "a seed moves noise and shards, never the split into pool and test"


def test_an_id_always_names_the_same_image() -> None:
    images: dict[str, bytes] = {}
    for shards, partition in ((1, "iid"), (3, "iid"), (3, "dirichlet:1")):
        part = _digits(0, shards, partition, noise="0.5", holdout="0")
        assert part.holdout is None
        for name, image in zip(part.ids, _x(part.train), strict=True):
            assert images.setdefault(name, image.numpy().tobytes()) == image.numpy().tobytes()
    assert len(images) == 1000


def test_noise_is_fixed_and_applies_to_training_and_test_images() -> None:
    clean, noisy, again = _digits(), _digits(noise="1.0"), _digits(noise="1.0")
    assert torch.equal(_x(noisy.train), _x(again.train))
    assert abs((_x(noisy.train) - _x(clean.train)).std().item() - 1) < 0.03
    ctx = DataContext(seed=1, options={"noise": "1.0"})
    difference = _x(data.test_set("digits", ctx)) - _x(data.test_set("digits", DataContext(seed=1)))
    assert abs(difference.std().item() - 1) < 0.03


def test_the_sample_limit_does_not_change_the_holdout() -> None:
    capped, whole = _digits(per_client="60"), _digits()
    assert capped.ids == whole.ids[:60]
    assert torch.equal(_x(capped.holdout), _x(whole.holdout))
    assert _digits(per_client="999").samples == 200


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"nose": "1"}, "no data option 'nose'; known are noise, per_client, holdout"),
        ({"noise": "-1"}, "noise is a standard deviation"),
        ({"noise": "loud"}, "noise must be a number, not 'loud'"),
        ({"holdout": "1"}, "holdout is a share"),
        ({"per_client": "-3"}, "per_client must be"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, str], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        data.load_data("digits", DataContext(options=options))


def test_unknown_names_are_refused() -> None:
    for function in (data.load_data, data.test_set):
        with pytest.raises(
            UsageError, match="no built-in dataset 'mnist'; use one of cifar10, cifar100, digits, prostate"
        ):
            function("mnist", DataContext())


def test_data_of_a_users_function(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "own_data.py").write_text(
        "import torch\n"
        "from torch.utils.data import TensorDataset\n"
        "from puf_client import ClientData\n"
        "def load(ctx):\n"
        "    d = TensorDataset(torch.ones(2, 1) * ctx.shard, torch.zeros(2))\n"
        "    return ClientData(d, ids=['a', 'b'])\n"
        "def test_set(ctx): return [(1, 2)]\n"
        "def pair(ctx): return 1, 2\n"
        "def broken(ctx): return 1 / 0\n"
    )
    ctx = DataContext(1, 2)
    assert data.load_data("own_data:load", ctx).ids == ["a", "b"]
    assert data.test_set("own_data:load", ctx) == [(1, 2)]
    with pytest.raises(UsageError, match=r"own_data:pair must return puf_client.ClientData, not tuple"):
        data.load_data("own_data:pair", ctx)
    with pytest.raises(UsageError, match=r"broken failed: .*own_data\.py, line 9: ZeroDivisionError"):
        data.load_data("own_data:broken", ctx)


@pytest.fixture
def cifar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small CIFAR-100 on disk in the real format. torchvision identifies the real files by their digests."""
    from torchvision.datasets import CIFAR100

    folder = tmp_path / "cifar-100-python"
    folder.mkdir()
    random = np.random.RandomState(0)
    files: dict[str, Any] = {"meta": {"fine_label_names": [str(i) for i in range(100)]}}
    for name, count in (("train", 400), ("test", 50)):
        pixels = random.randint(0, 256, (count, 3072)).astype(np.uint8)
        files[name] = {"data": pixels, "fine_labels": (np.arange(count) % 100).tolist()}
    digests = {}
    for name, content in files.items():
        raw = pickle.dumps(content)
        (folder / name).write_bytes(raw)
        digests[name] = hashlib.md5(raw).hexdigest()
    monkeypatch.setattr(CIFAR100, "train_list", [["train", digests["train"]]])
    monkeypatch.setattr(CIFAR100, "test_list", [["test", digests["test"]]])
    monkeypatch.setattr(CIFAR100, "meta", {**CIFAR100.meta, "md5": digests["meta"]})
    return tmp_path


def test_cifar_is_normalised_and_only_training_data_is_augmented(cifar: Path) -> None:
    mine = data.load_data("cifar100", DataContext(1, 4, "iid", 1, cifar))
    assert (mine.samples, mine.holdout_samples, mine.augments) == (80, 20, True)
    with open(cifar / "cifar-100-python" / "train", "rb") as file:
        source = pickle.load(file)
    index = int(mine.ids[0].removeprefix("cifar100/train/"))
    x, y = mine.train_plain[0]
    pixels = source["data"][index].reshape(3, 32, 32) / 255
    expected = (pixels - np.array([0.5071, 0.4865, 0.4409])[:, None, None]) / np.array(
        [[[0.2673]], [[0.2564]], [[0.2762]]]
    )
    assert np.allclose(x.numpy(), expected, atol=1e-5)
    assert y == index % 100
    torch.manual_seed(1)
    first, second = mine.train[0][0], mine.train[0][0]
    torch.manual_seed(1)
    assert torch.equal(first, mine.train[0][0])
    assert not torch.equal(first, second)
    assert first.shape == x.shape
    assert torch.equal(x, mine.train_plain[0][0])
    assert not data.load_data("cifar100", DataContext(1, 4, "iid", 1, cifar, {"augment": "false"})).augments
    assert len(data.test_set("cifar100", DataContext(0, 4, "iid", 1, cifar))) == 50  # type: ignore[arg-type]


def test_cifar_in_parts_groups_and_sizes(cifar: Path) -> None:
    def load(**options: str) -> data.ClientData:
        return data.load_data("cifar100", DataContext(0, 2, "iid", 1, cifar, {"holdout": "0", **options}))

    whole = load(augment="false")
    labels = [int(whole.train[i][1]) for i in range(whole.samples)]
    few = load(classes="5", augment="false")
    assert max(int(few.train[i][1]) for i in range(few.samples)) == 4
    assert len(data.test_set("cifar100", DataContext(0, 2, "iid", 1, cifar, {"classes": "5"}))) < 50  # type: ignore[arg-type]
    groups = load(group_size="2").groups
    assert groups is not None
    assert all(group.split("-")[1] == str(label) for group, label in zip(groups, labels, strict=True))
    assert max(groups.count(group) for group in groups) == 2
    assert load(size="64", augment="false").train[0][0].shape == (3, 64, 64)
    assert load(size="64", rotate="false").train[0][0].shape == (3, 64, 64)
    for option, says in {"classes": "at least 2", "group_size": "at least 1", "size": "at least 32"}.items():
        with pytest.raises(UsageError, match=says):
            load(**{option: "-1"})


def test_missing_cifar_files_are_explained(tmp_path: Path) -> None:
    with pytest.raises(
        UsageError,
        match=r"cifar10 is not in .*: unpack it there as cifar-10-batches-py, or set the data option download to true",
    ):
        data.load_data("cifar10", DataContext(directory=tmp_path))
    with pytest.raises(UsageError, match="cifar10 needs --data-dir"):
        data.load_data("cifar10", DataContext())
