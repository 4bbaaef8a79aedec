"""What makes a federation this one: federation.json beside the state, and the same facts in the database.

Both must agree. A description that was exchanged or edited where clients compute by it would go unnoticed until the
weights are wrong; a database of another federation would bring its roster and its tickets.
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

__all__ = ["FILE", "described", "fingerprint", "identity", "read", "require_same"]

FILE = "federation.json"


def described(config: FederationConfig, manifest: Manifest) -> bytes:
    """The content of federation.json."""
    tensors = [[t.name, t.dtype, list(t.shape), t.role] for t in manifest.tensors]
    return json.dumps({"config": config.model_dump(mode="json"), "manifest": tensors}, indent=1).encode()


def read(directory: Path) -> tuple[FederationConfig, Manifest]:
    path = directory / FILE
    if not path.exists():
        raise UsageError(f"{directory} holds no federation; make one with `puf-server init --state {directory}`")
    try:
        raw = json.loads(path.read_text())
        config = FederationConfig.model_validate(raw["config"])
        return config, Manifest(tuple(TensorSpec(n, d, tuple(s), r) for n, d, s, r in raw["manifest"]))
    except (ValueError, KeyError, TypeError, ValidationError) as error:
        raise StorageCorrupted(f"{path} cannot be read: {str(error).splitlines()[0]}") from None


def identity(config: FederationConfig, manifest: Manifest) -> dict[str, Any]:
    """What never changes in a federation's life. The plan and the policy are not in it: the operator may change them."""
    fixed: dict[str, Any] = {"id": config.id, "model": config.model, "task": config.task}
    fixed |= {"model_options": dict(config.model_options), "manifest": manifest.fingerprint.hex()}
    return fixed | {f"recipe.{name}": value for name, value in config.recipe.model_dump(mode="json").items()}


def fingerprint(facts: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(facts, sort_keys=True, separators=(",", ":")).encode()).hexdigest()[:16]


def require_same(kept: Mapping[str, Any], now: Mapping[str, Any], directory: Path) -> None:
    """Refuses a description that is not the one the state was made with; names both, and what differs.

    A setting that the recipe did not have then must have its default now: newer software is no other federation.
    """
    defaults = {f"recipe.{name}": field.default for name, field in Recipe.model_fields.items()}
    differ = [key for key in kept if now.get(key) != kept[key]]
    differ += [key for key in now if key not in kept and now[key] != defaults.get(key)]
    if not differ:
        return
    ours, theirs = fingerprint(kept), fingerprint({key: now[key] for key in now if key in kept or key in differ})
    told = "; ".join(f"{key} was {_short(kept.get(key))} and is {_short(now.get(key))}" for key in differ[:3])
    raise Mismatch(
        f"{directory}: the state is of federation {kept['id']} with fingerprint {ours}, {FILE} describes {now['id']} with "
        f"fingerprint {theirs} ({told}). Bring back the {FILE} and state.db that belong together, or make a new "
        "federation with `puf-server init`: model and recipe are for life",
        ours=ours,
        theirs=theirs,
    )


def _short(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 40 else f"{text[:16]}...{text[-9:]}"
