"""Settings as pydantic models, read from flags > PUF_* variables > a TOML file > defaults.

A field `batch_size: int = Field(32, ge=1, description="...")` becomes the flag `--batch-size`, the variable
`PUF_BATCH_SIZE` and the TOML key `batch_size`; its description is the help text. A field that is itself a model is a
TOML table. Its variables contain the field's name (`PUF_TLS_CERT`); so do its flags with `add_settings(nested=True)`
(`--tls-cert`). Lists are repeated or comma-separated, string tables are `key=value`, `none` clears an
optional field. `json_schema_extra={"metavar": "HOST:PORT"}` names the value in the help.

This module imports argparse but not pydantic, so that `--help` is shown at once. The caller's models import pydantic.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, get_args

from puf_common.config.fields import (
    NOT_GIVEN,
    PREFIX,
    SettingField,
    default_of,
    instance_of,
    is_model,
    setting_fields,
    unwrap,
)
from puf_common.config.messages import about, explain, shown, suggestion
from puf_common.errors import UsageError

if TYPE_CHECKING:
    from pydantic import BaseModel
    from pydantic_core import ErrorDetails

M = TypeVar("M", bound="BaseModel")

_EPILOG = (
    "Each flag --some-name may also be set as PUF_SOME_NAME in the environment or as some_name in the file "
    "given with --config; flags go before the environment, the environment before the file."
)


def add_settings(
    parser: argparse.ArgumentParser, model: type[BaseModel], *, nested: bool = False, skip: Collection[str] = ()
) -> None:
    """Gives the parser `--config` and one flag per field of the model; `skip` names fields that get none."""
    if "--config" not in parser._option_string_actions:
        text = "TOML file with settings"
        parser.add_argument("--config", metavar="FILE", default=argparse.SUPPRESS, help=text)
    parser.epilog = parser.epilog or _EPILOG
    groups: dict[tuple[str, ...], argparse._ActionsContainer] = {(): parser}
    for field in setting_fields(model):
        above = field.path[:-1]
        if field.key in skip or not field.textual or (above and not nested):
            continue
        if above not in groups:
            groups[above] = parser.add_argument_group(".".join(above), field.about)
        groups[above].add_argument(field.flag, dest=field.key, default=argparse.SUPPRESS, **field.argument())


def resolve(
    model: type[M],
    namespace: argparse.Namespace,
    *,
    env: Mapping[str, str] | None = None,
    toml: Path | Mapping[str, object] | None = None,
    also: Sequence[type[BaseModel]] = (),
) -> M:
    """The validated settings, each from the first of flags, environment, file and defaults that has it.

    The file is `toml`, else `--config`, else PUF_CONFIG. Its unknown keys are errors; keys of the models in `also`,
    which share the file, are not unknown. Empty variables count as not set.
    """
    from pydantic import ValidationError

    env = os.environ if env is None else env
    given = {key: value for key, value in vars(namespace).items() if value is not None}
    if toml is None:
        chosen = given.get("config") or env.get(f"{PREFIX}CONFIG")
        toml = Path(chosen) if chosen else {}
    name, folder = (toml.name, toml.parent) if isinstance(toml, Path) else ("configuration", Path())
    table = read_toml(toml) if isinstance(toml, Path) else toml
    _refuse_unknown(table, (model, *also), name)

    tree: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for field in setting_fields(model):
        if field.key in given:
            value, source = field.parse(given[field.key], field.flag), field.flag
        elif field.textual and env.get(field.variable):
            value, source = field.parse(env[field.variable], field.variable), field.variable
        else:
            source = f"{name}: {field.key}"
            value = field.parse_toml(_lookup(table, field.path, name), source, folder)
        if value is not NOT_GIVEN:
            sources[field.key] = source
            _branch(tree, field.path)[field.path[-1]] = value
    _complete(model, tree)
    try:
        return model.model_validate(tree)
    except ValidationError as error:
        raise UsageError("\n".join(_sentences(error.errors(include_url=False), model, sources))) from None


def read_toml(path: Path) -> dict[str, object]:
    """The tables of a TOML file; a UsageError names the file if it cannot be read."""
    import tomllib

    try:
        with open(os.path.expanduser(path), "rb") as file:
            return tomllib.load(file)
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is not valid TOML: {error}") from None


def _complete(model: type[BaseModel], tree: dict[str, Any], instance: BaseModel | None = None) -> None:
    """Adds required tables, and the parent's defaults for a table of which only a part was given."""
    if instance is not None:
        for name in model.model_fields:
            tree.setdefault(name, getattr(instance, name))
    for name, field in model.model_fields.items():
        inner, optional = unwrap(field.annotation)
        if not is_model(inner):
            continue
        default = getattr(instance, name) if instance is not None else default_of(field)
        if field.is_required() and not optional and instance is None:
            tree.setdefault(name, {})
        if isinstance(tree.get(name), dict):
            _complete(inner, tree[name], instance_of(default))


def _sentences(errors: list[ErrorDetails], model: type[BaseModel], sources: Mapping[str, str]) -> list[str]:
    """One sentence for each wrong field. It names the flag, variable or key that the value came from."""
    fields = {field.key: field for field in setting_fields(model)}
    wrong: dict[str, str] = {}
    for error in errors:
        parts = [str(part) for part in error["loc"]]
        key = next((k for n in range(len(parts), 0, -1) if (k := ".".join(parts[:n])) in fields), ".".join(parts))
        field, text = fields.get(key), explain(error)
        if field is None:
            wrong[key] = about(key, text)
        elif error["type"] == "missing" and key not in sources:
            wrong[key] = _required(field)
        elif not text.startswith("must be "):
            wrong[key] = about(sources.get(key, field.flag), text)
        elif key in wrong:  # another branch of a union
            wrong[key] = wrong[key].replace(", not ", f" or {text.removeprefix('must be ')}, not ", 1)
        else:
            given = "this value" if field.secret else shown(error["input"], quote=True)
            meant = suggestion(str(error["input"]), field.choices)
            wrong[key] = f"{sources.get(key, field.flag)} {text}, not {given}{meant}"
    return list(wrong.values())


def _required(field: SettingField) -> str:
    flag = f"{field.flag}, " if len(field.path) == 1 else ""
    return f"{field.key} is required: set {flag}{field.variable} or {field.key} in the file given with --config"


def _refuse_unknown(table: Mapping[str, object], models: Sequence[type[BaseModel]], name: str, above: str = "") -> None:
    fields: dict[str, list[Any]] = {}
    for model in models:
        for key, field in model.model_fields.items():
            fields.setdefault(key, []).append(unwrap(field.annotation)[0])
    for key, value in table.items():
        if key not in fields:
            raise UsageError(f"{name}: unknown key {above}{key}{suggestion(key, fields)}")
        kinds = fields[key]
        items = [value]
        if isinstance(value, list):
            items = value
            kinds = [unwrap(get_args(kind)[0])[0] for kind in kinds if get_args(kind)]
        inner = [kind for kind in kinds if is_model(kind)]
        for item in items:
            if inner and isinstance(item, Mapping):
                _refuse_unknown(item, inner, name, f"{above}{key}.")


def _lookup(table: Mapping[str, object], path: tuple[str, ...], name: str) -> object:
    value: object = table
    for depth, part in enumerate(path):
        if not isinstance(value, Mapping):
            raise UsageError(f"{name}: {'.'.join(path[:depth])} must be a table, not {shown(value, quote=True)}")
        if part not in value:
            return NOT_GIVEN
        value = value[part]
    return value


def _branch(tree: dict[str, Any], path: tuple[str, ...]) -> dict[str, Any]:
    for part in path[:-1]:
        tree = tree.setdefault(part, {})
    return tree
