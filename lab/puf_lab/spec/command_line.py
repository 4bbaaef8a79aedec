"""Flags of `puf-server init` and `puf-client` for a federation spec."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from pydantic import BaseModel

from puf_client.options import LocalOptions
from puf_lab.spec.federation import FederationSpec
from puf_server.core.config import FederationConfig


def server_flags(config: FederationConfig) -> list[str]:
    """Flags with which `puf-server init` makes this configuration."""
    return _flags(config.model_copy(update={"id": None}))


def data_flags(spec: FederationSpec) -> list[str]:
    """Data and device, as flags of any `puf-client` command."""
    return _flags(LocalOptions(**spec.data_options()))


def client_flags(spec: FederationSpec, shard: int) -> list[str]:
    """Name, shard, data and device of one client, as flags."""
    return _flags(spec.client_options(shard))


def _flags(options: BaseModel, prefix: str = "--") -> list[str]:
    """One flag per field that was set; fields of nested models carry the name of their table."""
    words: list[str] = []
    for name in type(options).model_fields:
        value = getattr(options, name)
        if name not in options.model_fields_set or value is None:
            continue
        flag = prefix + name.replace("_", "-")
        if isinstance(value, BaseModel):
            words += _flags(value, f"{flag}-")
        elif isinstance(value, bool):
            words.append(flag if value else flag.replace("--", "--no-", 1))
        elif isinstance(value, Mapping):
            words += [word for key, item in value.items() for word in (flag, f"{key}={item}")]
        elif isinstance(value, tuple | list):
            words += [word for item in value for word in (flag, str(item))]
        else:
            words += [flag, str(value.value if isinstance(value, Enum) else value)]
    return words
