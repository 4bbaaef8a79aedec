"""Digest of the code that decides a result. It is part of a result's name, so edited code gets new runs."""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Literal

Part = Literal["training", "forgetting", "measuring"]

# Runs: everything between the data and the sum of the updates, and the lab's code that drives it.
_RUNS = (
    "puf_common/models", "puf_common/tensors", "puf_common/seeds.py", "puf_common/receipts/gap.py",
    "puf_common/receipts/evidence.py",
    "puf_server/core", "puf_server/aggregation", "puf_server/engine", "puf_server/ingest",
    "puf_server/rpc/messages.py",
    "puf_client/data", "puf_client/tasks.py", "puf_client/routines", "puf_client/session", "puf_client/worker",
    "puf_client/unlearning", "puf_client/state/local_models.py",
    "puf_lab/federations", "puf_lab/evaluation/evaluator.py", "puf_lab/evaluation/comparison.py",
    "puf_lab/experiments/perform.py", "puf_lab/experiments/forget_samples.py", "puf_lab/experiments/stages.py",
)  # fmt: skip
# Only runs that forget, or store history for it, depend on these.
_FORGETTING = (
    "puf_server/core/methods", "puf_server/core/unlearning", "puf_client/unlearning", "puf_common/receipts",
    "puf_client/state/local_models.py",
)  # fmt: skip
# The metrics of finished runs.
_MEASURING = (
    "puf_client/routines/evaluate.py", "puf_client/routines/forward.py", "puf_client/routines/per_sample.py",
    "puf_client/tasks.py", "puf_lab/evaluation", "puf_lab/experiments/measuring.py",
    "puf_lab/experiments/forget_samples.py",
)  # fmt: skip

_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


@cache
def code_digest(part: Part) -> str:
    """Digest of the modules that a run which only trains, one that forgets, or the measurement executes."""
    return digest_of(sources(part))


def sources(part: Part) -> dict[str, str]:
    """Names and texts of these modules."""
    found: dict[str, str] = {}
    for place in _MEASURING if part == "measuring" else _RUNS:
        package, _, path = place.partition("/")
        found.update(_modules(place, files(package).joinpath(*path.split("/"))))
    return {name: text for name, text in found.items() if part != "training" or not name.startswith(_FORGETTING)}


def digest_of(modules: Mapping[str, str]) -> str:
    """Digest of modules by name. Comments, docstrings and layout do not count."""
    lines = [f"{name} {ast.dump(_without_docstrings(text))}" for name, text in sorted(modules.items())]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:20]


def _without_docstrings(text: str) -> ast.Module:
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, _DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            node.body = node.body[1:]
    return tree


def _modules(name: str, place: Traversable) -> Iterator[tuple[str, str]]:
    """The Python files of a place with their texts."""
    if place.is_dir():
        for entry in place.iterdir():
            yield from _modules(f"{name}/{entry.name}", entry)
    elif name.endswith(".py"):
        yield name, place.read_text(encoding="utf-8")
