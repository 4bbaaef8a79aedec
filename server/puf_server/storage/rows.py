"""Records of the state as text in a row, and back. What could not be read again is never written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pydantic import ConfigDict, TypeAdapter, ValidationError

from puf_common.errors import PufError, StorageCorrupted


def adapter(kind: Any) -> TypeAdapter[Any]:
    """Between a record and its row. What is not finite is written as such, so that `text` can see it."""
    return TypeAdapter(kind | None, config=ConfigDict(ser_json_inf_nan="constants"))


def text(adapter: TypeAdapter[Any], record: str, value: Any) -> str:
    """A record as it is written. One that holds a number that is not finite is not: JSON has none."""
    written = adapter.dump_json(value).decode()
    if "NaN" in written or "Infinity" in written:
        try:
            json.loads(written, parse_constant=_refuse)
        except ValueError as error:
            raise PufError(f"the record {record} holds {error} and is not saved: nothing was changed") from None
    return written


def read(adapter: TypeAdapter[Any], written: str, record: str, where: Path) -> Any:
    try:
        return adapter.validate_json(written)
    except ValidationError as error:
        why = error.errors()[0]
        raise StorageCorrupted(
            f"{where}: the record {record} cannot be read: {why['msg']} ({'.'.join(map(str, why['loc']))}); bring it back "
            "from a backup",
            record=record,
        ) from None


def _refuse(constant: str) -> Any:
    raise ValueError(constant)
