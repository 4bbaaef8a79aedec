"""The table that compares methods, made from their declarations."""

from __future__ import annotations

from puf_server.core import methods

COLUMNS = (
    "method",
    "history",
    "full participation",
    "stateful clients",
    "task-agnostic",
    "auxiliary data",
    "single round",
    "simultaneous",
    "selective",
    "target takes part",
    "samples",
    "stores",
)


def rows() -> list[tuple[str, ...]]:
    found = []
    for name, method in methods.known().items():
        r = method.requires
        facts = (
            r.history,
            r.full_participation,
            r.stateful_clients,
            r.task_agnostic,
            r.auxiliary_data,
            r.single_round,
            r.simultaneous,
            r.selective,
            r.target_takes_part,
            "samples" in r.scopes,
        )
        found.append((name, *("yes" if fact else "no" for fact in facts), ", ".join(method.stores.words) or "nothing"))
    return found


def markdown() -> str:
    lines = [COLUMNS, tuple("---" for _ in COLUMNS), *rows()]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
