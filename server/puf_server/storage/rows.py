"""Records of the state as text in rows. A record that could not be read again is not written.

Every row has a checksum of its table, its key and its text, because a bit that changes in a page of the database can leave
a record that is readable and wrong.
"""

from __future__ import annotations

import json
import sqlite3
import zlib
from collections.abc import Iterable
from typing import Any

from pydantic import ConfigDict, TypeAdapter, ValidationError

from puf_common.errors import PufError, StorageCorrupted


def adapter(kind: Any) -> TypeAdapter[Any]:
    """Converts a record to its row and back. Numbers that are not finite become constants that `text` finds."""
    return TypeAdapter(kind | None, config=ConfigDict(ser_json_inf_nan="constants"))


def text(adapter: TypeAdapter[Any], record: str, value: Any) -> str:
    """The text of a record. Raises PufError for a number that is not finite: JSON has none."""
    written = adapter.dump_json(value).decode()
    if "NaN" in written or "Infinity" in written:
        try:
            json.loads(written, parse_constant=_refuse)
        except ValueError as error:
            raise PufError(f"the record {record} holds {error} and is not saved: nothing was changed") from None
    return written


def read(adapter: TypeAdapter[Any], written: str, record: str, where: object) -> Any:
    """The record of a row. Raises StorageCorrupted with the name of the record."""
    try:
        return adapter.validate_json(written)
    except ValidationError as error:
        why = error.errors()[0]
        raise StorageCorrupted(
            f"{where}: the record {record} cannot be read: {why['msg']} ({'.'.join(map(str, why['loc']))}); restore "
            "a backup",
            record=record,
        ) from None


def put(db: sqlite3.Connection, table: str, rows: Iterable[tuple[object, str]]) -> None:
    """Writes rows, each a key and a text, over those with the same keys."""
    summed = [(key, body, checksum(table, key, body)) for key, body in rows]
    db.executemany(f"INSERT OR REPLACE INTO {table} VALUES (?, ?, ?)", summed)  # noqa: S608


def verify(table: str, rows: Iterable[tuple[object, object, object]], where: object) -> None:
    """Raises StorageCorrupted at the first row, a key, a text and a checksum, whose checksum does not match."""
    for key, body, stated in rows:
        if stated != checksum(table, key, body):
            record = f"{table}/{key}"
            raise StorageCorrupted(
                f"{where}: the record {record} does not match its checksum; restore a backup", record=record
            )


def checksum(table: str, key: object, body: object) -> int:
    return zlib.crc32(f"{table}/{key}/{body}".encode())


def _refuse(constant: str) -> Any:
    raise ValueError(constant)
