"""The same federation run in different ways: in this process, or as a real server and client processes.

The lab asks for the same few things of either, and the same seeds give the same weights in both.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, Self

from puf_common.errors import UsageError
from puf_lab.experiments.setting import Setting, Spent

__all__ = ["ENGINES", "Federation", "open_federation"]

ENGINES = ("in-process", "processes", "ray")


class Federation(Protocol):
    """Server and clients of a setting, in a directory that can be copied once it is closed."""

    def train(self, tick: Callable[[int], None] = ...) -> None:
        """Runs until the planned rounds are done; `tick` is told how many have been done since it was last told."""

    def extend(self, rounds: int) -> None:
        """Plans more rounds."""

    def forget(
        self,
        targets: Collection[int],
        *,
        mode: str | None = ...,
        kappa: float | None = ...,
        eta_u: float | None = ...,
        epochs: int = ...,
        samples: Mapping[int, Sequence[str]] | None = ...,
    ) -> Any:
        """Lets clients ask together to be forgotten, and runs until that is done."""

    def payload(self) -> bytearray:
        """The newest model."""

    def spent(self) -> Spent: ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...


def open_federation(engine: str, setting: Setting, directory: Path, **left_out: Any) -> Federation:
    """Founds a federation in the directory, or goes on with the one that is there. `left_out` names clients
    (`without`) and samples (`without_samples`) that take no part."""
    if engine in ("in-process", "ray"):
        from puf_lab.federations.in_process import LocalFederation

        return LocalFederation(setting, directory, keep_models=1, **left_out)
    if engine == "processes":
        from puf_lab.federations.subprocesses import ProcessFederation

        return ProcessFederation(setting, directory, **left_out)
    raise UsageError(f"there is no engine {engine!r}; use one of {', '.join(ENGINES)}")
