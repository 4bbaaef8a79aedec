"""The routines of FedQUIT, NegMerge and FedOSD."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from puf_client.routines.doubt import doubt, unlearning_loss
from puf_client.routines.inputs import options_from
from puf_client.routines.merge import MergeOptions, merge, rates
from puf_client.routines.quit import QuitOptions, quit_true_class, without_true_class
from puf_client.routines.registry import RoutineInputs, routines_with, run_routine
from puf_client.routines.train import train
from puf_common.errors import UsageError
from tests.client.routines.points import RUN, TASK, network, payload, pixels, points, segmenter, settings, weights


def test_the_true_class_gets_the_smallest_score() -> None:
    scores = torch.tensor([[3.0, 1.0, -2.0], [0.0, 5.0, 4.0]])
    assert without_true_class(scores, torch.tensor([0, 2])).tolist() == [[-2.0, 1.0, -2.0], [0.0, 5.0, 0.0]]
    assert scores[0, 0] == 3.0


def test_quitting_lowers_the_probability_of_the_true_class_only() -> None:
    model, data = network(), points(40)
    train(model, data, TASK, settings(0.2, epochs=30), RUN)
    x, y = data.tensors
    before = copy.deepcopy(model).eval()(x).softmax(1).detach()
    quit_true_class(model, data, settings(0.1, epochs=20), QuitOptions(batch_size=8), RUN)
    after = model.eval()(x).softmax(1).detach()
    true = after.gather(1, y[:, None]).mean()
    assert true < 0.6 * before.gather(1, y[:, None]).mean()
    assert true < 1 / 3


def test_quitting_uses_adam_where_the_settings_have_sgd() -> None:
    """The first step of Adam is the rate for every weight, whatever the gradient is. One of sgd is the rate times it."""

    def moves(**options: bool) -> list[float]:
        model, start = network(), weights(network())
        one_step = replace(settings(0.001), batch_size=20, weight_decay=0.5)
        quit_true_class(model, points(20), one_step, QuitOptions(batch_size=0, **options), RUN)
        return [float((w - s).abs().max()) for w, s in zip(weights(model), start, strict=True)]

    assert moves() == pytest.approx([0.001] * len(moves()), rel=0.01)
    plain = moves(adam=False)
    assert all(abs(move - 0.001) > 0.0002 for move in plain)


def test_the_unlearning_loss_is_bounded() -> None:
    sure = torch.tensor([[100.0, 0.0]])
    assert unlearning_loss(sure, torch.tensor([0])).item() == pytest.approx(0.6931472)
    assert unlearning_loss(sure, torch.tensor([1])).item() == pytest.approx(0.0)
    # p = 1/2: -log(3/4).
    assert unlearning_loss(torch.zeros(1, 2), torch.tensor([0])).item() == pytest.approx(0.2876821)


def test_doubt_lowers_the_probability_of_the_true_class() -> None:
    model, data = network(), points(40)
    x, y = data.tensors
    before = copy.deepcopy(model).eval()(x).softmax(1).gather(1, y[:, None]).mean()
    doubt(model, data, settings(0.2, epochs=5), RUN)
    assert model.eval()(x).softmax(1).gather(1, y[:, None]).mean() < before


def test_rates_lie_at_equal_ratios() -> None:
    assert rates(0.1, MergeOptions(runs=3, spread=2)) == pytest.approx([0.05, 0.1, 0.2])
    assert rates(0.1, MergeOptions(runs=2, spread=1)) == pytest.approx([0.1, 0.1])
    with pytest.raises(UsageError, match="runs must be at least 2"):
        options_from(MergeOptions, {"runs": 1.0})


def test_merging_keeps_only_entries_whose_signs_agree() -> None:
    data, start = points(), weights(network())
    options = MergeOptions(runs=3)
    model = network()
    result = merge(model, data, TASK, settings(0.1, epochs=3), options, RUN)
    assert result.samples_processed == 3 * 20
    merged = [w - s for w, s in zip(weights(model), start, strict=True)]
    assert any((m == 0).any() for m in merged)
    assert any((m != 0).any() for m in merged)
    # Other rates and another number of runs agree on other entries.
    single = network()
    merge(single, data, TASK, settings(0.1, epochs=2), replace(options, spread=1.0, runs=2), RUN)
    assert payload(single) != payload(model)


def test_these_routines_need_classes() -> None:
    with pytest.raises(UsageError, match="FedQUIT works on classification"):
        quit_true_class(segmenter(), pixels(), settings(), QuitOptions(), RUN)
    with pytest.raises(UsageError, match="FedOSD works on classification"):
        doubt(segmenter(), pixels(), settings(), RUN)


OWN = """
from puf_client.routines.train import TrainResult, train

def twice(given, context):
    train(*given.common, context)
    return train(*given.common, context)

def wrong(given, context):
    return 3.0
"""


def _inputs() -> RoutineInputs:
    data = points()
    return RoutineInputs(
        model=network(),
        samples=data,
        task=TASK,
        settings=settings(),
        options={},
        outputs=(),
        forget=None,
        second=None,
        fresh=network,
        plain=data,
    )


def test_the_users_routine_runs_only_if_the_client_lists_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_routines.py").write_text(OWN)
    monkeypatch.syspath_prepend(str(tmp_path))
    known = routines_with(["own_routines:twice", "own_routines:wrong"])
    given = _inputs()
    assert run_routine("own_routines:twice", given, RUN, known).samples_processed == 20
    once = network()
    train(once, points(), TASK, settings(), RUN)
    assert payload(given.model) != payload(once)
    with pytest.raises(UsageError, match="returned float: it must return"):
        run_routine("own_routines:wrong", _inputs(), RUN, known)
    # A name from the network is not imported.
    with pytest.raises(UsageError, match=r"does not have the routine 'own_routines:twice'.*--routine"):
        run_routine("own_routines:twice", _inputs(), RUN)
    with pytest.raises(UsageError, match="has no nothing"):
        routines_with(["own_routines:nothing"])
