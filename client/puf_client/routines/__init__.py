"""Local work in torch: train, evaluate, measure every sample, and what other methods of forgetting ask of a client.

The same seeds give the same bits in every process on the same kind of CPU: `prepare` is the one place that fixes
threads and algorithms, and chance comes from `stream(epoch)` alone.

The routines of the other methods are one file each and imported where they are asked for, since most clients never are.
"""

from __future__ import annotations

from puf_client.data.samples import Resident, Samples, resident, select
from puf_client.routines.evaluate import EvaluationSums, PerSample, evaluate, per_sample
from puf_client.routines.train import Abandoned, TrainResult, TrainSettings, prepare, train

__all__ = [
    "Abandoned",
    "EvaluationSums",
    "PerSample",
    "Resident",
    "Samples",
    "TrainResult",
    "TrainSettings",
    "evaluate",
    "per_sample",
    "prepare",
    "resident",
    "select",
    "train",
]
