"""What a directory must still have after a power cut. A broken guarantee is raised by its name."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum

from puf_common.errors import PufError

__all__ = ["Broken", "Guarantee", "guarantees"]


class Guarantee(StrEnum):
    OPENS = "the directory can be opened"
    ACKNOWLEDGED = "everything acknowledged is recorded"
    MODELS = "every recorded model and history file is there"
    UPDATES = "every recorded update is there"


class Broken(AssertionError):
    """A guarantee that the power cut broke."""

    def __init__(self, guarantee: Guarantee, why: object) -> None:
        super().__init__(f"broken: {guarantee}: {why}")
        self.guarantee = guarantee


@contextmanager
def guarantees(guarantee: Guarantee) -> Iterator[None]:
    """Turns a failed check into the guarantee that it is about."""
    try:
        yield
    except Broken:
        raise
    except (AssertionError, PufError) as error:
        raise Broken(guarantee, error) from error
