"""The settings of a session: what the worker offers, how it joins, and how the session runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from puf_client.machine import THIS_MACHINE, Machine
from puf_client.session.samples import KnownSamples
from puf_common.tensors.manifest import Manifest


class HasIds(Protocol):
    """Data with one id per training sample, for example `puf_client.ClientData`."""

    @property
    def ids(self) -> Sequence[str]: ...


@dataclass(frozen=True, kw_only=True)
class Offer:
    """What a worker has and can do. It needs `data` or `samples`."""

    # Has the ids of the training samples. The session then keeps forgotten samples out, states which ones to use
    # (`Assignment.indices`) and records them.
    data: HasIds | Sequence[str] | KnownSamples | None = None
    # Without data: their number, or a function that returns it. The client can then only be forgotten as a whole.
    samples: int | Callable[[], int] | None = None
    # What the loop supports.
    parts: Iterable[str] = ("main",)
    routines: Iterable[str] = ("train",)
    holdout_samples: int = 0
    # A client with unlabeled samples distills.
    unlabeled_samples: int = 0
    # Must equal the federation's.
    manifest: Manifest | None = None
    # Of the frozen parameters; empty without any. Must equal the federation's.
    base_digest: bytes = b""
    plugin_version: str = ""
    device: str = "cpu"


@dataclass(frozen=True, kw_only=True)
class Joining:
    """How a worker joins."""

    # Asks for a new membership after the client was forgotten and readmitted.
    rejoin: bool = False
    only_if_no_worker: bool = False
    # New samples since the last join.
    added_samples: int = 0


@dataclass(frozen=True, kw_only=True)
class Running:
    """How a session runs."""

    # Whether a thread sends heartbeats; otherwise the caller does.
    heartbeats: bool = True
    # Longest time that the iterator waits for work in one call.
    wait_seconds: float = 20.0
    machine: Machine = THIS_MACHINE
