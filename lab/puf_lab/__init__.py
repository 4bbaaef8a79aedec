"""The lab: experiments that measure what forgetting costs and what a model still knows afterwards."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from puf_lab.experiments.api import run, run_results

__all__ = ["run", "run_results"]


def __getattr__(name: str) -> object:
    """`run` or `run_results`, imported when it is used: the lab's commands must start quickly."""
    if name in __all__:
        from puf_lab.experiments import api

        return getattr(api, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
