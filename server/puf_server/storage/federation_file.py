"""The identity of a federation: federation.json, and the same facts in the database.

Both must agree. Otherwise an edited description would go unnoticed until the weights are wrong, and the database of another
federation would bring its own roster and tickets.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from puf_common.errors import Mismatch, StorageCorrupted, UsageError
from puf_common.tensors.manifest import Manifest, TensorSpec
from puf_server.core.config import FederationConfig, Recipe

FILE = "federation.json"
_ELSEWHERE = "postgresql"


def described(config: FederationConfig, manifest: Manifest, *, elsewhere: bool = False, objects: str = "") -> bytes:
    """The content of federation.json. `elsewhere`: the state is in PostgreSQL, not in the directory.

    `objects` is the address of the files in an object store; empty: they are in the directory.
    """
    tensors = [[t.name, t.dtype, list(t.shape), t.role] for t in manifest.tensors]
    facts: dict[str, Any] = {"config": config.model_dump(mode="json"), "manifest": tensors}
    facts |= {"database": _ELSEWHERE} if elsewhere else {}
    facts |= {"files": objects} if objects else {}
    return json.dumps(facts, indent=1).encode()


def read(directory: Path, database: str = "") -> tuple[FederationConfig, Manifest]:
    """The configuration and the manifest of the federation in a directory.

    Raises where the state is in PostgreSQL and `database`, its address, is not given, and the other way round.
    """
    path = directory / FILE
    if not path.exists():
        raise UsageError(f"{directory} holds no federation; make one with `puf-server init --state {directory}`")
    try:
        raw = json.loads(path.read_text())
        _require_place(directory, raw.get("database", ""), database)
        config = FederationConfig.model_validate(raw["config"])
        return config, Manifest(tuple(TensorSpec(n, d, tuple(s), r) for n, d, s, r in raw["manifest"]))
    except (ValueError, KeyError, TypeError, ValidationError) as error:
        raise StorageCorrupted(f"{path} cannot be read: {str(error).splitlines()[0]}") from None


def objects(directory: Path) -> str:
    """The address of the federation's files in an object store; empty: they are in the directory."""
    try:
        found = json.loads((directory / FILE).read_text()).get("files", "")
    except (OSError, ValueError) as error:
        raise StorageCorrupted(f"{directory / FILE} cannot be read: {str(error).splitlines()[0]}") from None
    return str(found)


def _require_place(directory: Path, stored: str, database: str) -> None:
    """Raises unless the state is where the caller looks for it."""
    if stored == _ELSEWHERE and not database:
        raise UsageError(
            f"the state of the federation in {directory} is in PostgreSQL: give --state postgresql://... --files {directory}"
        )
    if stored != _ELSEWHERE and database:
        raise UsageError(f"the state of the federation in {directory} is in that directory: give --state {directory}")


def identity(config: FederationConfig, manifest: Manifest) -> dict[str, Any]:
    """The facts that never change. The plan and the policy are not among them: the operator may change both."""
    fixed: dict[str, Any] = {"id": config.id, "model": config.model, "task": config.task}
    fixed |= {"model_options": dict(config.model_options), "manifest": manifest.fingerprint.hex()}
    if config.base_digest:
        fixed |= {"base_digest": config.base_digest, "base_seed": config.base_seed}
    return fixed | {f"recipe.{name}": value for name, value in config.recipe.model_dump(mode="json").items()}


def fingerprint(facts: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(facts, sort_keys=True, separators=(",", ":")).encode()).hexdigest()[:16]


def require_same(kept: Mapping[str, Any], now: Mapping[str, Any], directory: Path) -> None:
    """Raises unless the description is the one that the state was made with.

    A setting that an older version did not have must have its default.
    """
    defaults = {f"recipe.{name}": field.default for name, field in Recipe.model_fields.items()}
    differ = [key for key in kept if now.get(key) != kept[key]]
    differ += [key for key in now if key not in kept and now[key] != defaults.get(key)]
    if not differ:
        return
    ours, theirs = fingerprint(kept), fingerprint({key: now[key] for key in now if key in kept or key in differ})
    differences = "; ".join(f"{key} was {_short(kept.get(key))} and is {_short(now.get(key))}" for key in differ[:3])
    raise Mismatch(
        f"{directory}: the state is of federation {kept['id']} with fingerprint {ours}, {FILE} describes {now['id']} with "
        f"fingerprint {theirs} ({differences}). Bring back the {FILE} and state.db that belong together, or make a new "
        "federation with `puf-server init`: model and recipe cannot change",
        ours=ours,
        theirs=theirs,
    )


def _short(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 40 else f"{text[:16]}...{text[-9:]}"
