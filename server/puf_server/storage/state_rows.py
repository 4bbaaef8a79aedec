"""The state of a federation as rows, and back. Every database stores the same rows."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from pydantic import TypeAdapter

from puf_server import plugins
from puf_server.core.state.jobs import Recovery, UnlearningJob
from puf_server.core.state.measurements import Evaluation
from puf_server.core.state.members import Member
from puf_server.core.state.models import ModelVersion
from puf_server.core.state.rounds import HistoryRecord, Round, RoundRecord
from puf_server.core.state.state import State
from puf_server.core.state.tickets import Ticket
from puf_server.storage import rows

plugins.allow()

# Persistent fields of State: scalars and single records go to `meta`, mappings to a table of their own.
SCALARS = (
    "version",
    "number",
    "attempt",
    "trained",
    "planned",
    "decays",
    "streams",
    "paused",
    "halted",
    "evaluations",
)
SINGLES: dict[str, TypeAdapter[Any]] = {
    "round": rows.adapter(Round),
    "evaluation": rows.adapter(Evaluation),
    "job": rows.adapter(UnlearningJob),
    "recovery": rows.adapter(Recovery),
    "leases": TypeAdapter(dict[str, int]),
}
MANY: dict[str, TypeAdapter[Any]] = {
    "members": rows.adapter(Member),
    "tickets": rows.adapter(Ticket),
    "models": rows.adapter(ModelVersion),
    "records": rows.adapter(RoundRecord),
    "history": rows.adapter(HistoryRecord),
}
# Beside the state: the time that the federation's clock showed.
TIME = "time"
VOLATILE = frozenset({"stopping", "notes"})
assert {f.name for f in fields(State)} == {*SCALARS, *SINGLES, *MANY, *VOLATILE}

Row = tuple[Any, str]


@dataclass(frozen=True)
class Difference:
    """Rows to write and keys to delete, by table. `meta` is one of the tables."""

    put: Mapping[str, list[Row]]
    deleted: Mapping[str, list[Any]]


def changed_fields(before: State | None, after: State) -> set[str]:
    """The stored fields that differ."""
    names = (*SCALARS, *SINGLES, *MANY)
    return {name for name in names if before is None or getattr(before, name) is not getattr(after, name)}


def difference(before: State | None, after: State, now: float | None = None) -> Difference | None:
    """What turns the rows of `before` into those of `after`; None: nothing. `now` is recorded as the federation's time."""
    changed = changed_fields(before, after)
    if not changed and now is None:
        return None
    meta = [] if now is None else [(TIME, repr(now))]
    meta += [(name, json.dumps(getattr(after, name), allow_nan=False)) for name in SCALARS if name in changed]
    meta += [(name, rows.text(kind, name, getattr(after, name))) for name, kind in SINGLES.items() if name in changed]
    put, deleted = {"meta": meta}, {}
    for table in MANY.keys() & changed:
        old, new = getattr(before, table) if before else {}, getattr(after, table)
        put[table] = [
            (key, rows.text(MANY[table], f"{table}/{key}", record))
            for key, record in new.items()
            if old.get(key) is not record
        ]
        deleted[table] = [key for key in old if key not in new]
    return Difference(put, deleted)


def state_of(meta: Mapping[str, str], tables: Mapping[str, Iterable[Row]], where: object) -> State:
    """The state in these rows, each table in the order of its keys. A field without a row gets its default."""
    values = _values(meta, where)
    # Older versions counted every round.
    values.setdefault("decays", values.get("number", 0))
    for table, found in tables.items():
        values[table] = {key: _record(table, key, body, where) for key, body in found}
    return State(**values)


def updated(
    state: State,
    meta: Mapping[str, str],
    tables: Mapping[str, Iterable[Row]],
    keys: Mapping[str, set[Any]] | None,
    where: object,
) -> State:
    """`state` with the rows that were written since. `keys` are all keys of each table; None: no row was deleted."""
    values = _values(meta, where)
    for table in MANY:
        known: Mapping[Any, Any] = getattr(state, table)
        written = {key: _record(table, key, body, where) for key, body in tables.get(table, ())}
        gone = set() if keys is None else known.keys() - keys.get(table, set())
        if written or gone:
            merged = {key: record for key, record in known.items() if key not in gone} | written
            values[table] = dict(sorted(merged.items()))
    return replace(state, **values)


def _values(meta: Mapping[str, str], where: object) -> dict[str, Any]:
    values: dict[str, Any] = {name: json.loads(meta[name]) for name in SCALARS if name in meta}
    return values | {name: rows.read(kind, meta[name], name, where) for name, kind in SINGLES.items() if name in meta}


def _record(table: str, key: Any, body: str, where: object) -> Any:
    return rows.read(MANY[table], body, f"{table}/{key}", where)
