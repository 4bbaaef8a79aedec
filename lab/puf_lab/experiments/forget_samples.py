"""Selection of the samples that a target wants forgotten, by the seed, as single samples, whole groups or classes."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from puf_client.data import ClientData
from puf_client.data.labels import labels_of
from puf_client.data.partition import stream
from puf_common.errors import UsageError
from puf_lab.evaluation.evaluator import ForgetSet
from puf_lab.spec.experiment import SampleSelection


def chosen(data: ClientData, wanted: SampleSelection, *, seed: int, shard: int) -> tuple[str, ...]:
    """Ids of about the wanted share of the samples: at least one sample or group, and never all."""
    order = stream(seed, "forget", wanted.by, shard)
    size = min(max(1, round(wanted.fraction * data.samples)), data.samples - 1)
    if wanted.by == "sample":
        return tuple(sorted(data.ids[i] for i in order.permutation(data.samples)[:size]))
    if data.groups is None:
        raise UsageError('the samples of this data are in no groups; use by = "sample", or add groups to the data')
    names = sorted(set(data.groups))
    ids: list[str] = []
    for group in (names[i] for i in order.permutation(len(names))):
        members = [i for i, g in zip(data.ids, data.groups, strict=True) if g == group]
        if ids and len(ids) + len(members) > size:
            break
        ids += members
    if len(ids) >= data.samples:
        raise UsageError("one group is all of the target's data; forget the whole client instead")
    return tuple(sorted(ids))


def forget_set(
    clients: list[ClientData], targets: Collection[int], samples: SampleSelection | None, seed: int
) -> ForgetSet:
    """The samples to forget of every target. None stands for all of them.

    A target that has no sample of the classes to forget asks for nothing. One that has no others is forgotten as a whole.
    """
    if samples is None:
        return dict.fromkeys(sorted(targets))
    if samples.by == "class":
        found = {t: _of_classes(clients[t], samples.classes) for t in sorted(targets)}
        asking = {t: ids for t, ids in found.items() if ids}
        if not asking:
            raise UsageError(f"no target has samples of the classes {', '.join(map(str, samples.classes))}")
        return {t: None if len(ids) == clients[t].samples else ids for t, ids in asking.items()}
    return {t: chosen(clients[t], samples, seed=seed, shard=t) for t in sorted(targets)}


def _of_classes(data: ClientData, classes: Collection[int]) -> tuple[str, ...]:
    return tuple(sorted(data.ids[int(i)] for i in np.flatnonzero(np.isin(labels_of(data), sorted(classes)))))
