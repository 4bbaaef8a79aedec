"""Directories of a federation: a new server state, a copy under another forgetting policy, samples left out."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from puf_client.state.directory import StateDirectory
from puf_common.models import initial
from puf_common.models.networks import build_any
from puf_lab.spec.federation import FederationSpec
from puf_server.core.config import FederationConfig
from puf_server.storage.creation import create
from puf_server.storage.durable import DISK, Files


def initial_model(spec: FederationSpec) -> initial.InitialModel:
    """The initial weights of a federation: fresh ones of its seed, or those of a published checkpoint."""
    model = build_any(spec.model.name, spec.server_config().model_options, spec.model_seed)
    if spec.model.pretrained and spec.weights is not None:
        from puf_common.models.mit import load_published

        load_published(model, spec.weights)
    return initial.initial_model(model, spec.model_seed)


def create_server(spec: FederationSpec, config: FederationConfig, directory: Path, files: Files = DISK) -> None:
    """Writes the state of a new federation with the initial weights of the spec."""
    first = initial_model(spec)
    config = config.model_copy(update={"base_digest": first.base_digest, "base_seed": first.base_seed})
    create(directory, config, first.manifest, first.payload, time.time(), files)


def copy_state(source: Path, target: Path, forgetting: Mapping[str, Any]) -> None:
    """Copies a federation that is not running, and changes the forgetting policy of the copy."""
    shutil.copytree(source, target, ignore=shutil.ignore_patterns("lock", "*.part"))
    if forgetting:
        path = target / "server" / "federation.json"
        described = json.loads(path.read_text())
        # A collapsed model is a result here. It must not wait for an operator.
        described["config"]["forgetting"].update({**forgetting, "collapse_ratio": 0.0})
        FederationConfig.model_validate(described["config"])
        path.write_text(json.dumps(described, indent=1))


def leave_out(state: StateDirectory, samples: Sequence[str]) -> None:
    """Keeps samples out of training from the start, as after a completed request for them."""
    state.prepare("left-out", samples)
    state.filed("left-out", "left-out")
