"""What the strategy and the mod say to each other: one ConfigRecord beside the app's own records."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict

from puf_common.errors import InvalidUpdate
from puf_embedded.arithmetic import Arrays

RECORD = "puf"
# Tasks in a message. Without one, the node trains as usual.
NEGATE, DOSE, EVALUATE, MEASURE = "negate", "dose", "evaluate", "measure"


def arrays_of(record: ArrayRecord) -> dict[str, np.ndarray]:
    return {name: array.numpy() for name, array in record.items()}


def record_of(arrays: Arrays) -> ArrayRecord:
    return ArrayRecord({name: Array(np.asarray(array)) for name, array in arrays.items()})


def only_arrays(content: RecordDict) -> str:
    """The key of the one ArrayRecord. Raises InvalidUpdate if there are none or several."""
    keys = list(content.array_records.keys())
    if len(keys) != 1:
        raise InvalidUpdate(f"PUF works on messages with one ArrayRecord, this one has {len(keys)}")
    return str(keys[0])


def taken(content: RecordDict) -> ConfigRecord:
    """PUF's own record, removed from the content, so that the app sees only its own records; empty if there is none."""
    return content.pop(RECORD) if RECORD in content else ConfigRecord()


def without_errors(messages: Iterable[Message]) -> list[Message]:
    """Messages without an error."""
    return [message for message in messages if not message.has_error()]
