"""Checks of numbers and texts that clients supply, before they enter the state.

Accepted values are finite and small, and their sums over all clients stay in the range of their type. So no request can
make a state that does not load again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from puf_common.errors import InvalidArgument
from puf_common.receipts.evidence import BINS, Attack
from puf_common.receipts.ranks import MOST_CLASSES, RankComparison
from puf_server.core.state.measurements import Sums
from puf_server.core.state.rounds import Assignment

KEY_CHARS = 128
SESSION_CHARS = 64

# Ten thousand clients together stay below 2^63.
_MOST_SAMPLES = 1 << 48
# Per sample. The loss of a diverged model is large, but below this.
_LARGEST_LOSS = 1e9
_TEN_YEARS = 3653 * 86400.0
# Routines may use a sample more than once in an epoch.
_PASSES = 4


def key(text: str) -> str:
    """A request's key, chosen by the client."""
    if not text:
        raise InvalidArgument("a request needs a key, so that a repeated request finds its ticket")
    if len(text) > KEY_CHARS or not text.isprintable():
        raise InvalidArgument(f"a request's key has at most {KEY_CHARS} printable characters")
    return text


def day(at: float, now: float) -> float:
    """When a request was received: in the past, and not more than ten years ago."""
    if not math.isfinite(at) or not now - _TEN_YEARS <= at <= now:
        raise InvalidArgument(
            "the day of receipt lies in the future" if at > now else "the day of receipt is not a valid day"
        )
    return at


def sums(
    samples: int, loss_sum: float, score_sum: float, confidences: Sequence[int], announced: int | None = None
) -> Sums:
    """A measurement. `announced` is the number of samples that the client announced, if known."""
    most = _MOST_SAMPLES if announced is None else announced
    if samples < 1 or not 0.0 <= score_sum <= samples:
        raise InvalidArgument("a measurement needs at least one sample and a score between 0 and the number of samples")
    if samples > most:
        raise InvalidArgument(f"the measurement is of {samples} samples, at most {most} were announced")
    if not abs(loss_sum) <= _LARGEST_LOSS * samples:
        raise InvalidArgument(f"a measurement must be finite, with a loss of at most {_LARGEST_LOSS:g} per sample")
    if len(confidences) not in (0, BINS) or sum(confidences) > samples:
        raise InvalidArgument(f"confidences are counts of the samples in {BINS} bins, or none")
    return Sums(samples=samples, loss_sum=loss_sum, score_sum=score_sum, confidences=tuple(confidences))


def class_confidences(counts: Sequence[int], samples: int) -> tuple[int, ...]:
    """Hold-out samples by class and bin of confidence; empty if the client did not count them."""
    if len(counts) % BINS or len(counts) > BINS * MOST_CLASSES or sum(counts) > samples:
        raise InvalidArgument(
            f"confidences by class are counts of the samples in {BINS} bins for each of at most {MOST_CLASSES} classes"
        )
    return tuple(counts)


def ranks(found: RankComparison) -> RankComparison:
    """A rank comparison, as the owner of a ticket states it. `RankComparison` checks its figures."""
    if max(found.forget_samples, found.unseen_samples) > _MOST_SAMPLES:
        raise InvalidArgument("the figures of a rank comparison are out of range")
    return found


def attack(found: Attack) -> Attack:
    """The result of a membership attack, as the owner of a ticket states it. `Attack` checks that the counts add up."""
    if max(found.forget_samples, found.holdout_samples) > _MOST_SAMPLES or abs(found.threshold) > _LARGEST_LOSS:
        raise InvalidArgument("the figures of a membership attack are out of range")
    return found


def processed(samples_processed: int, assignment: Assignment) -> int:
    """The number of processed samples, which must fit the assignment."""
    most = _PASSES * math.ceil(max(1.0, assignment.epochs)) * assignment.samples
    if samples_processed > most:
        raise InvalidArgument(
            f"the update states {samples_processed} samples processed; its assignment needs at most {most}"
        )
    return samples_processed


def train_loss(value: float) -> float | None:
    """A mean loss; None if the stated value is not finite or out of range."""
    return value if abs(value) <= _LARGEST_LOSS else None
