"""The lab: experiments that measure what forgetting costs and what a model still knows afterwards."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from puf_lab.experiments.api import run

__all__ = ["run"]


def __getattr__(name: str) -> object:
    """`puf_lab.run`, imported when it is used: the lab's commands must start quickly."""
    if name == "run":
        from puf_lab.experiments.api import run

        return run
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
