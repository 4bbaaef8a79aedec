"""One dose: the gap, the label shift, and the search for the strength."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from puf_client.data.samples import Samples
from puf_client.routines.dose import Dose, Unseen, dose
from puf_client.routines.dosing import DoseOptions
from puf_client.routines.evaluate import per_sample
from puf_client.routines.train import TrainResult, train
from puf_client.tasks import Segmentation, Task
from puf_common.errors import UsageError
from puf_common.receipts.gap import Gap
from tests.client.routines.points import CPU, RUN, TASK, network, payload, pixels, points, segmenter, settings, weights
from tests.tables import by_class

OPTIONS = DoseOptions(min_kappa=0.125, max_kappa=8.0, growth=1.25, margin=0.15, largest_fall=0.2)
UNSEEN = by_class((20, 20, 20), (2.0, 2.0, 2.0), (0.2, 0.2, 0.2))


def give(model: torch.nn.Module, samples: Samples, options: DoseOptions = OPTIONS, task: Task = TASK) -> TrainResult:
    table = UNSEEN if task is TASK else by_class((60,), (6.0,), (0.6,))
    started = Dose(model, task, options, RUN, plain=samples, unseen=Unseen(None, table))
    return dose(started, model, samples, task, settings(lr=0.5, epochs=3), RUN)


def fitted() -> torch.nn.Module:
    model = network()
    train(model, points(), TASK, settings(lr=0.5, epochs=40), RUN)
    return model


def once(model: torch.nn.Module, options: DoseOptions, unseen: Unseen) -> TrainResult:
    """One dose of one epoch on the points."""
    started = Dose(model, TASK, options, RUN, plain=points(), unseen=unseen)
    return dose(started, model, points(), TASK, settings(), RUN)


def test_the_chosen_kappa_is_the_smallest_that_lowers_the_confidence_enough() -> None:
    model = fitted()
    base, level = weights(model), per_sample(model, points(), TASK, device=CPU).confidences.mean()
    found = give(model, points()).dose
    assert found is not None
    assert found.gap.value == pytest.approx(level - 0.1, abs=1e-6)
    trained = weights(model)

    def fall(kappa: float) -> float:
        with torch.no_grad():
            for parameter, w, t in zip(model.parameters(), base, trained, strict=True):
                parameter.copy_(w - kappa * (t - w))
        return float(level - per_sample(model, points(), TASK, device=CPU).confidences.mean())

    assert found.kappa in [0.125 * 1.25**i for i in range(20)] or found.kappa == 8.0
    assert fall(found.kappa) >= 0.2 or found.kappa == 8.0
    if found.kappa > 0.125:
        assert fall(found.kappa / 1.25) < 0.2


def test_a_model_that_does_not_know_the_samples_gets_the_smallest_dose() -> None:
    known = by_class((20, 20, 20), (18.0, 18.0, 18.0), (16.2, 16.2, 16.2))
    found = once(network(), OPTIONS, Unseen(None, known)).dose
    assert found is not None
    assert found.kappa == 0.125


def test_no_kappa_exceeds_the_limit() -> None:
    options = DoseOptions(min_kappa=0.125, max_kappa=0.3, growth=1.25, margin=0.15, largest_fall=0.99)
    found = give(fitted(), points(), options).dose
    assert found is not None
    assert found.kappa == 0.3


def test_the_same_seeds_give_the_same_dose_and_model() -> None:
    one, two = fitted(), fitted()
    assert give(one, points()) == give(two, points())
    assert payload(one) == payload(two)


def test_the_label_mix_alone_teaches_nothing() -> None:
    """A model that predicts the label mix has no gradient under the shift, so its bias does not move."""
    x = torch.zeros(30, 3)
    y = torch.tensor([0] * 20 + [1] * 9 + [2])
    samples = torch.utils.data.TensorDataset(x, y)
    model = torch.nn.Linear(3, 3)
    with torch.no_grad():
        model.weight.zero_()
        model.bias.zero_()
    plain = torch.nn.Linear(3, 3)
    plain.load_state_dict(model.state_dict())
    give(model, samples)
    train(plain, samples, TASK, settings(lr=0.5, epochs=3), RUN)
    assert float(model.bias.detach().abs().max()) < 0.5 * float(plain.bias.detach().abs().max())


def test_a_task_without_classes_uses_its_own_confidences() -> None:
    found = give(segmenter(), pixels(60), task=Segmentation()).dose
    assert found is not None
    level = per_sample(segmenter(), pixels(60), Segmentation(), device=CPU).confidences.mean()
    assert found.gap.value == pytest.approx(level - 0.1, abs=1e-6)


def test_no_dose_without_a_measurement() -> None:
    few = by_class((10,), (1.0,), (0.1,))
    for unseen in (Unseen(None, None), Unseen(None, few), Unseen(points(10), None)):
        with pytest.raises(UsageError, match="hold-out samples"):
            once(network(), OPTIONS, unseen)


def test_the_wanted_fall_follows_the_rule() -> None:
    later = DoseOptions(
        min_kappa=0.125,
        max_kappa=8.0,
        growth=1.25,
        margin=0.15,
        largest_fall=0.2,
        damage=0.02,
        first_gap=0.4,
        may_skip=True,
    )
    # Over the gap: 0.15 * 0.4 = 0.06, but at most one standard error.
    assert later.need(Gap(value=0.1, error=0.5), 0.0) == pytest.approx(0.1 - 0.02 + 0.06)
    assert later.need(Gap(value=0.1, error=0.01), 0.1) == pytest.approx(0.1 - 0.02 + 0.01)
    # From a third of the data on, damage is what the loss of the data explains; in between, a part of it.
    assert later.need(Gap(value=0.1, error=0.01), 0.5) == pytest.approx(0.1 + 0.01)
    assert replace(later, share=0.2).need(Gap(value=0.1, error=0.01), 0.0) == pytest.approx(0.1 + 0.01 - 0.02 * 4 / 7)
    assert OPTIONS.need(Gap(value=0.1, error=0.01), 0.0) == pytest.approx(0.115)
    assert later.skip(Gap(value=-0.1, error=0.05))
    assert not later.skip(Gap(value=-0.1, error=0.15))
    assert not OPTIONS.skip(Gap(value=-0.9, error=0.01))


def test_a_skipped_dose_changes_nothing() -> None:
    options = replace(OPTIONS, first_gap=0.4, may_skip=True)
    known = by_class((20, 20, 20), (19.0, 19.0, 19.0), (18.1, 18.1, 18.1))
    model = network()
    before = payload(model)
    found = once(model, options, Unseen(None, known))
    assert found.dose is not None
    assert (found.dose.kappa, found.samples_processed, payload(model)) == (0.0, 0, before)
