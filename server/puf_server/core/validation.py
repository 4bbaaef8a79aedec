"""Numbers and texts that clients supply, held against what they can sensibly be.

Whatever enters the state passes here first: it is finite, it can be summed over any number of clients without leaving
the range of its type, and it is small. So nothing that a client sends can make a state that does not load again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from puf_common.errors import InvalidArgument
from puf_common.receipts.evidence import BINS, Attack
from puf_server.core.state.measurements import Sums
from puf_server.core.state.rounds import Assignment

__all__ = [
    "KEY_CHARS",
    "SESSION_CHARS",
    "attack",
    "day",
    "key",
    "processed",
    "sums",
    "train_loss",
]

KEY_CHARS = 128
SESSION_CHARS = 64

# Ten thousand clients together stay below 2^63.
_MOST_SAMPLES = 1 << 48
# Per sample. A diverged model may be far off, but not further than this.
_LARGEST_LOSS = 1e9
_TEN_YEARS = 3653 * 86400.0
# Routines may look at a sample more than once in an epoch.
_PASSES = 4


def key(text: str) -> str:
    """A request's key, chosen by the client."""
    if not text:
        raise InvalidArgument("a request needs a key of its own, so that asking twice is one ticket")
    if len(text) > KEY_CHARS or not text.isprintable():
        raise InvalidArgument(f"a request's key has at most {KEY_CHARS} printable characters")
    return text


def day(at: float, now: float) -> float:
    """When a request reached somebody: in the past, and in this decade."""
    if not math.isfinite(at) or not now - _TEN_YEARS <= at <= now:
        raise InvalidArgument("the day of receipt lies in the future" if at > now else "the day of receipt is no day")
    return at


def sums(
    samples: int, loss_sum: float, score_sum: float, confidences: Sequence[int], announced: int | None = None
) -> Sums:
    """A measurement. `announced` is how many samples the client said it has, where that is known."""
    most = _MOST_SAMPLES if announced is None else announced
    if samples < 1 or not 0.0 <= score_sum <= samples:
        raise InvalidArgument("a measurement needs at least one sample and a score between 0 and the number of samples")
    if samples > most:
        raise InvalidArgument(f"the measurement is of {samples} samples, at most {most} were announced")
    if not abs(loss_sum) <= _LARGEST_LOSS * samples:
        raise InvalidArgument("a measurement must be finite, and its loss within reason")
    if len(confidences) not in (0, BINS) or sum(confidences) > samples:
        raise InvalidArgument(f"confidences are counts of the samples in {BINS} bins, or none")
    return Sums(samples=samples, loss_sum=loss_sum, score_sum=score_sum, confidences=tuple(confidences))


def attack(found: Attack) -> Attack:
    """What the owner of a ticket says that an attack found; `Attack` itself refuses what does not add up."""
    if max(found.forget_samples, found.holdout_samples) > _MOST_SAMPLES or abs(found.threshold) > _LARGEST_LOSS:
        raise InvalidArgument("the figures of a membership attack are out of all reason")
    return found


def processed(samples_processed: int, assignment: Assignment) -> int:
    """The client's account of its computing, against what its work can have cost."""
    most = _PASSES * math.ceil(max(1.0, assignment.epochs)) * assignment.samples
    if samples_processed > most:
        raise InvalidArgument(
            f"the update states {samples_processed} samples processed; its work asks for at most {most}"
        )
    return samples_processed


def train_loss(value: float) -> float | None:
    """A mean loss, or None where the client could not tell anything that makes sense."""
    return value if abs(value) <= _LARGEST_LOSS else None
