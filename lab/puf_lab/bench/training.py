"""Local training on 32x32 images: the client's routine compared with the usual torchvision pipeline per sample.

Both use the same network, optimizer, batches, augmentation and one thread. The images are generated and can be learned,
so nothing is downloaded and the accuracy of both can be compared.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from puf_client.data.images import Images
from puf_client.routines.context import RoutineContext
from puf_client.routines.evaluate import evaluate
from puf_client.routines.train import TrainSettings, prepare, train
from puf_client.tasks import task_named
from puf_common.models.networks import build
from puf_lab.bench.report import Report, seconds, spread

_CPU = torch.device("cpu")
_MEAN, _STD = (0.5, 0.5, 0.5), (0.25, 0.25, 0.25)
_SETTINGS = TrainSettings(lr=0.05, batch_size=32, epochs=1)
_EPOCHS_TO_LEARN = 3
Samples = tuple[NDArray[np.uint8], NDArray[np.int64]]


def training(report: Report, scratch: Path, repeats: int) -> None:
    data, held = _images(1000, 1), _images(500, 2)
    networks: dict[str, Callable[[], nn.Module]] = {
        "small_network": _small,
        "resnet8": lambda: build("resnet8-gn", {}, 1),
    }
    for label, make in networks.items():
        ways = {
            "usual": _usual(make(), data),
            "ours": _ours(make(), data),
            "arithmetic": _arithmetic(make(), len(data[1])),
        }
        times: dict[str, list[float]] = {way: [] for way in ways}
        for _ in range(max(3, repeats)):
            for way, run in ways.items():
                times[way].append(len(data[1]) / seconds(lambda run=run: next(run)))  # type: ignore[misc]
        speed = {way: statistics.median(rates) for way, rates in times.items()}
        ratio = speed["ours"] / speed["usual"]
        note = f"{spread(times['ours'])} against {spread(times['usual'])} images a second"
        report.at_least(f"training_to_usual_pipeline_{label}", ratio, 2.0, note=note)
        note = f"the network's steps on one batch, again and again: {spread(times['arithmetic'])} images a second"
        report.at_least(f"training_to_arithmetic_alone_{label}", speed["ours"] / speed["arithmetic"], None, note=note)
        report.details[f"training_images_per_second_{label}"] = times
    score = {name: _learned(run, held) for name, run in (("usual", _usual), ("ours", _ours))}
    note = f"accuracy {100 * score['ours']:.1f} % against {100 * score['usual']:.1f} %"
    report.at_most("training_accuracy_apart", 100 * abs(score["ours"] - score["usual"]), 3.0, "points", note)
    _options(report, data, repeats)


def _options(report: Report, data: Samples, repeats: int) -> None:
    """Effect of the recipe's options on this CPU. Compiling is left out: it takes longer than it could save."""
    found = {}
    for name, settings in {
        "none": _SETTINGS,
        "channels_last": replace(_SETTINGS, channels_last=True),
        "amp": replace(_SETTINGS, amp=True),
    }.items():
        run = _ours(build("resnet8-gn", {}, 1), data, settings)
        found[name] = statistics.median(len(data[1]) / seconds(lambda run=run: next(run)) for _ in range(3))  # type: ignore[misc]
    report.details["training_options_images_per_second_resnet8"] = found
    speeds = ", ".join(f"{name} {rate / found['none']:.2f}" for name, rate in found.items() if name != "none")
    report.console.print(f"  options of the recipe on this CPU, ResNet-8, times the speed without: {speeds}")


def _images(count: int, seed: int) -> Samples:
    """Ten blurred patterns under noise. A network needs some epochs to distinguish them."""
    patterns = np.random.default_rng(0).uniform(60, 196, (10, 8, 8, 3)).repeat(4, 1).repeat(4, 2)
    chance = np.random.default_rng(seed)
    labels = chance.integers(0, 10, count)
    pixels = patterns[labels] + chance.normal(0, 160, (count, 32, 32, 3))
    return pixels.clip(0, 255).astype(np.uint8), labels.astype(np.int64)


def _small() -> nn.Module:
    """Two convolutions, as in a demo. Their arithmetic is cheap, so the cost of data preparation is visible."""
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return nn.Sequential(
            nn.Conv2d(3, 8, 3, 2, 1), nn.ReLU(), nn.Conv2d(8, 16, 3, 2, 1), nn.ReLU(), nn.Flatten(), nn.Linear(1024, 10)
        )


def _usual(model: nn.Module, data: Samples) -> Iterator[nn.Module]:
    """The usual loop of tutorials, one epoch at a time."""
    from PIL import Image
    from torch.utils.data import DataLoader, Dataset
    from torchvision import transforms

    chain = transforms.Compose(
        [
            transforms.RandomRotation(0.06 * 360, interpolation=transforms.InterpolationMode.BILINEAR),
            transforms.RandomCrop(32, padding=2),
            transforms.RandomHorizontalFlip(),
            transforms.ToTensor(),
            transforms.Normalize(_MEAN, _STD),
        ]
    )

    class Pictures(Dataset[Any]):
        def __len__(self) -> int:
            return len(data[1])

        def __getitem__(self, index: int) -> Any:
            return chain(Image.fromarray(data[0][index])), int(data[1][index])

    prepare(_CPU, 1)
    torch.manual_seed(1)
    loader = DataLoader(Pictures(), _SETTINGS.batch_size, shuffle=True)
    return _epochs(model, loader)


def _arithmetic(model: nn.Module, images: int) -> Iterator[nn.Module]:
    """The limit of any pipeline: as many steps without data preparation."""
    prepare(_CPU, 1)
    batch = torch.randn(_SETTINGS.batch_size, 3, 32, 32), torch.arange(_SETTINGS.batch_size) % 10
    return _epochs(model, [batch] * -(-images // _SETTINGS.batch_size))


def _epochs(model: nn.Module, batches: Iterable[tuple[torch.Tensor, torch.Tensor]]) -> Iterator[nn.Module]:
    optimizer = torch.optim.SGD(model.parameters(), _SETTINGS.lr)
    loss = nn.CrossEntropyLoss()
    while True:
        for x, y in batches:
            optimizer.zero_grad()
            loss(model(x), y).backward()
            optimizer.step()
        yield model


def _ours(model: nn.Module, data: Samples, settings: TrainSettings = _SETTINGS) -> Iterator[nn.Module]:
    images, task = Images(*data, _MEAN, _STD, augment=True), task_named("classification")
    epoch = 0
    while True:
        train(model, images, task, settings, context=RoutineContext(_CPU, lambda _, seed=epoch: seed))  # type: ignore[misc]
        epoch += 1
        yield model


def _learned(run: Callable[[nn.Module, Samples], Iterator[nn.Module]], held: Samples) -> float:
    """Accuracy on held-out images after a few epochs."""
    epochs = run(_small(), _images(3000, 3))
    for _ in range(_EPOCHS_TO_LEARN):
        model = next(epochs)
    sums = evaluate(model, Images(*held, _MEAN, _STD), task_named("classification"), device=_CPU)
    return sums.score_sum / sums.samples
