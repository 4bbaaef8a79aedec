"""What the lab needs of a federation, however it runs. The same seeds give the same weights in both kinds."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, Self, TypedDict, Unpack

from puf_lab.spec.federation import FederationSpec


@dataclass(frozen=True)
class Spent:
    """Cost of committed rounds: their number, tensor bytes in both directions, samples trained on."""

    rounds: int = 0
    nbytes: int = 0
    samples: int = 0

    @classmethod
    def of(cls, rounds: Iterable[tuple[int, int, int]]) -> Spent:
        """The sum over rounds, each given as (bytes up, bytes down, samples)."""
        listed = list(rounds)
        return cls(len(listed), sum(up + down for up, down, _ in listed), sum(samples for *_, samples in listed))

    def __sub__(self, other: Spent) -> Spent:
        return Spent(self.rounds - other.rounds, self.nbytes - other.nbytes, self.samples - other.samples)


class Strength(TypedDict, total=False):
    """How strongly PUF forgets: kappa or eta_u, and the number of local epochs."""

    kappa: float
    eta_u: float
    epochs: int


class Federation(Protocol):
    """Server and clients of a spec, in a directory that can be copied while the federation is closed."""

    def train(self, tick: Callable[[int], None] = ...) -> None:
        """Runs until the planned rounds are done. `tick` receives the number of rounds done since its last call."""

    def extend(self, rounds: int) -> None:
        """Plans more rounds."""

    def forget(
        self,
        targets: Collection[int],
        *,
        mode: str | None = ...,
        samples: Mapping[int, Sequence[str]] | None = ...,
        **strength: Unpack[Strength],
    ) -> object:
        """Files requests of several clients together, and runs until all are completed.

        Requests are served by the federation's method. Mode and strength are for PUF; what is missing is left to the
        federation's policy. `samples` names the samples of a client that is not forgotten as a whole.
        """

    def payload(self) -> bytearray:
        """The newest model."""

    def spent(self) -> Spent:
        """Cost of all committed rounds so far."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...


def open_federation(
    spec: FederationSpec, directory: Path, *, left_out: Mapping[int, Sequence[str] | None]
) -> Federation:
    """A new federation in the directory, or the one that is there.

    `left_out` names clients of which the given samples take no part. None stands for the whole client.
    """
    without = [shard for shard, ids in left_out.items() if ids is None]
    samples = {shard: ids for shard, ids in left_out.items() if ids is not None}
    if spec.kind == "processes":
        from puf_lab.federations.subprocesses import ProcessFederation

        return ProcessFederation(spec, directory, without=without, without_samples=samples)
    from puf_lab.federations.in_process import InProcessFederation

    return InProcessFederation(spec, directory, without=without, without_samples=samples, keep_models=1)
