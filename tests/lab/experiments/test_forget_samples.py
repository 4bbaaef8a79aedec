from __future__ import annotations

import pytest
import torch
from pydantic import ValidationError
from torch.utils.data import TensorDataset

from puf_client.data import ClientData
from puf_common.errors import UsageError
from puf_lab.experiments.forget_samples import chosen, forget_set
from puf_lab.spec.experiment import SampleSelection


def client(samples: int, groups: list[str] | None = None) -> ClientData:
    data = TensorDataset(torch.zeros(samples, 1), torch.zeros(samples))
    return ClientData(data, ids=[f"s{i:02d}" for i in range(samples)], groups=groups)


def test_the_seed_selects_a_share_of_the_samples() -> None:
    half = SampleSelection(fraction=0.5)
    first = chosen(client(20), half, seed=1, shard=0)
    assert len(first) == 10
    assert first == chosen(client(20), half, seed=1, shard=0)
    assert first != chosen(client(20), half, seed=2, shard=0)
    assert len(chosen(client(20), SampleSelection(fraction=0.001), seed=1, shard=0)) == 1
    assert len(chosen(client(2), SampleSelection(fraction=0.99), seed=1, shard=0)) == 1, "never all"


def test_whole_groups_are_selected() -> None:
    groups = [f"g{i // 4}" for i in range(20)]
    ids = chosen(client(20, groups), SampleSelection(fraction=0.4, by="group"), seed=1, shard=0)
    assert len(ids) == 8
    touched = {groups[int(name[1:])] for name in ids}
    assert len(touched) == 2
    few = chosen(client(20, groups), SampleSelection(fraction=0.01, by="group"), seed=1, shard=0)
    assert len(few) == 4, "at least one group"
    with pytest.raises(UsageError, match="in no groups"):
        chosen(client(20), SampleSelection(by="group"), seed=1, shard=0)
    with pytest.raises(UsageError, match="one group is all"):
        chosen(client(4, ["g"] * 4), SampleSelection(by="group"), seed=1, shard=0)


def test_all_samples_of_a_class_are_selected() -> None:
    """Client 0 has 3 and others, client 1 only 3, client 2 no 3."""

    def labelled(*labels: int) -> ClientData:
        data = TensorDataset(torch.zeros(len(labels), 1), torch.tensor(labels))
        return ClientData(data, ids=[f"s{i}" for i in range(len(labels))])

    clients = [labelled(3, 1, 3, 0, 1, 3), labelled(3, 3), labelled(0, 1)]
    three = SampleSelection(by="class", classes=(3,))
    assert forget_set(clients, [0], three, 1) == {0: ("s0", "s2", "s5")}
    assert forget_set(clients, [2, 1, 0], three, 5) == {0: ("s0", "s2", "s5"), 1: None}
    assert forget_set(clients, [0, 2], SampleSelection(by="class", classes=(0, 1)), 1) == {
        0: ("s1", "s3", "s4"),
        2: None,
    }
    with pytest.raises(UsageError, match="no target has samples of the classes 3"):
        forget_set(clients, [2], three, 1)
    with pytest.raises(ValidationError, match='belongs to by = "class", which needs it'):
        SampleSelection(by="class")
    with pytest.raises(ValidationError, match='belongs to by = "class"'):
        SampleSelection(classes=(1,))
    with pytest.raises(ValidationError, match="leave out fraction"):
        SampleSelection(by="class", classes=(1,), fraction=0.2)


def test_without_a_selection_whole_clients_are_forgotten() -> None:
    assert forget_set([], [3, 1], None, 1) == {1: None, 3: None}
