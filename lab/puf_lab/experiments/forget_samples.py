"""Selection of the samples that a target wants forgotten, by the seed, as single samples, whole groups or classes."""

from __future__ import annotations

from collections.abc import Collection

from puf_client.data import ClientData
from puf_client.data.labels import of_classes
from puf_client.data.partition import stream
from puf_common.errors import UsageError
from puf_lab.evaluation.evaluator import ForgetSet
from puf_lab.spec.experiment import SampleSelection


def chosen(data: ClientData, wanted: SampleSelection, *, seed: int, shard: int) -> tuple[str, ...]:
    """Ids of about the wanted share of the samples: at least one sample or group, and never all. Or all of a class."""
    if wanted.by == "class":
        of_class = of_classes(data, wanted.classes)
        if len(of_class) == data.samples:
            raise UsageError("all samples of a target have the classes to forget; forget the whole client instead")
        return tuple(sorted(data.ids[i] for i in of_class))
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
    """The samples to forget of every target. None stands for all of them."""
    if samples is None:
        return dict.fromkeys(sorted(targets))
    return {t: chosen(clients[t], samples, seed=seed, shard=t) for t in sorted(targets)}
