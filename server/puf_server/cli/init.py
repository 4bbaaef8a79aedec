"""`puf-server init`: makes the state of a new federation with its initial model. Only this command imports torch."""

from __future__ import annotations

import secrets
import time
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from puf_common.errors import UsageError
from puf_common.models.initial import InitialModel, initial_model, read_initial_model
from puf_common.tensors.manifest import Manifest
from puf_server import plugins
from puf_server.cli.place import FILES_HELP, KEYS_HELP, METAVAR, objects, place
from puf_server.core.config import FederationConfig, Forgetting, Limits, Plan, Recipe

plugins.allow()


class InitSettings(BaseModel):
    """The settings of a new federation."""

    model_config = ConfigDict(extra="forbid")

    state: str = Field(
        description="new directory for the federation's state, or postgresql://USER@HOST/DATABASE",
        json_schema_extra={"metavar": METAVAR},
    )
    files: str = Field("", description=FILES_HELP, json_schema_extra={"metavar": METAVAR})
    keys: Path | None = Field(None, description=KEYS_HELP, json_schema_extra={"metavar": "DIR"})
    title: str = Field("federation", description="name of the federation, for people")
    model: str = Field("digits-cnn", description="built-in model, or package.module:function of the user's code")
    model_options: dict[str, str] = Field({}, description="options of the model, e.g. classes=10")
    model_file: Path | None = Field(None, description="safetensors file with the initial weights instead of fresh ones")
    task: str = Field("classification", description="classification, segmentation, or package.module:Class")
    plugin_version: str = Field("", description="required version of the clients' plug-in code; empty: not checked")
    recipe: Recipe = Recipe()
    plan: Plan = Plan()
    forgetting: Forgetting = Forgetting()
    limits: Limits = Limits()


def init(settings: InitSettings) -> tuple[FederationConfig, Manifest]:
    """Makes the state of a federation. Returns the configuration and the model's manifest."""
    from puf_server.storage.creation import create

    directory, database = place(settings.state, settings.files, settings.keys, new=True)
    chosen = {
        name: getattr(settings, name)
        for name in InitSettings.model_fields.keys() & FederationConfig.model_fields.keys()
    }
    first = _initial(settings)
    base = {"base_digest": first.base_digest, "base_seed": first.base_seed}
    config = FederationConfig(id=f"f-{secrets.token_hex(8)}", **chosen, **base)
    url = objects(settings.files)
    create(directory, config, first.manifest, first.payload, time.time(), database=database, objects=url)
    return config, first.manifest


def _initial(settings: InitSettings) -> InitialModel:
    if settings.model_file is not None:
        return read_initial_model(settings.model_file)
    try:
        from puf_common.models.networks import build_any

        seed = settings.recipe.seed
        return initial_model(build_any(settings.model, settings.model_options, seed), seed)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("torch", "torchvision"):
            raise
        raise UsageError(
            f"making a model needs PyTorch ({error}); install puf-fl[train], or give --model-file with weights made elsewhere"
        ) from None
