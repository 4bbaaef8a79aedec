"""The fields of a settings model as flags, environment variables and keys of a file."""

from __future__ import annotations

import argparse
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from pathlib import Path
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_args, get_origin

from puf_common.config.messages import shown
from puf_common.errors import UsageError

if TYPE_CHECKING:
    from pydantic import BaseModel
    from pydantic.fields import FieldInfo

PREFIX = "PUF_"
NOT_GIVEN = object()
_METAVARS = {int: "N", float: "X", str: "TEXT", Path: "PATH"}
_SEQUENCES = (list, tuple, set, frozenset)


@dataclass(frozen=True)
class SettingField:
    """A field that is not itself a model: its flag, variable and key, and how text becomes its value."""

    path: tuple[str, ...]
    field: FieldInfo
    default: object
    about: str

    @property
    def key(self) -> str:
        return ".".join(self.path)

    @property
    def flag(self) -> str:
        return "--" + "-".join(self.path).replace("_", "-")

    @property
    def variable(self) -> str:
        return PREFIX + "_".join(self.path).upper()

    @cached_property
    def plain(self) -> tuple[Any, bool]:
        return unwrap(self.field.annotation)

    @property
    def many(self) -> bool:
        return _origin(self.plain[0]) in _SEQUENCES

    @property
    def table(self) -> bool:
        return _origin(self.plain[0]) in (dict, Mapping)

    @cached_property
    def item(self) -> Any:
        """The type of one item: the elements of a list, the values of a table, else the type itself."""
        arguments = [a for a in get_args(self.plain[0]) if a is not Ellipsis]
        if self.many:
            return unwrap(arguments[0])[0] if arguments else str
        if self.table:
            return unwrap(arguments[1])[0] if len(arguments) > 1 else str
        return self.plain[0]

    @property
    def textual(self) -> bool:
        """Whether the value has a text form. Lists of tables have none: only the file can state them."""
        kinds = [unwrap(kind)[0] for kind in get_args(self.item)] or [self.item]
        return not any(is_model(kind) or _origin(kind) in (*_SEQUENCES, dict, Mapping) for kind in kinds)

    @property
    def secret(self) -> bool:
        return getattr(self.item, "__name__", "").startswith("Secret")

    @cached_property
    def choices(self) -> dict[str, object]:
        if get_origin(self.item) is Literal:
            return {str(value): value for value in get_args(self.item)}
        if isinstance(self.item, type) and issubclass(self.item, Enum):
            return {str(member.value): member.value for member in self.item}
        return {}

    def argument(self) -> dict[str, Any]:
        """The arguments of `add_argument` besides the flag."""
        text = f"{(self.field.description or '').rstrip('.')} {self.shown_default()}".strip().replace("%", "%%")
        if self.plain[0] is bool:
            return {"help": text, "action": argparse.BooleanOptionalAction}
        extra = self.field.json_schema_extra
        metavar = extra.get("metavar") if isinstance(extra, dict) else None
        if self.choices and not self.many and not self.table and not metavar:
            return {"help": text, "choices": [*self.choices, *(["none"] if self.plain[1] else [])]}
        metavar = metavar or ("{" + ",".join(self.choices) + "}" if self.choices else _METAVARS.get(self.item, "VALUE"))
        if self.table:
            return {"help": text, "action": "append", "metavar": f"KEY={metavar}"}
        if self.many:
            return {"help": text, "action": "append", "metavar": f"{metavar},..."}
        return {"help": text, "metavar": metavar}

    def shown_default(self) -> str:
        """The default in brackets; nothing for an empty text."""
        if self.default is NOT_GIVEN:
            return "(required)"
        text = "set" if self.secret and self.default else shown(self.default)
        return f"(default: {text})" if text else ""

    def parse(self, given: object, source: str) -> object:
        """The value of a text or a list of texts. Conversions that pydantic makes are left to it."""
        if self.plain[1] and isinstance(given, str) and given.lower() == "none":
            return None
        if self.many or self.table:
            texts = [given] if isinstance(given, str) else given
            if not isinstance(texts, Iterable):
                return given
            # A repeated key=value may contain commas; a list on one line may not.
            split = self.many or isinstance(given, str)
            items = [item.strip() for text in texts for item in (str(text).split(",") if split else [str(text)])]
            items = [item for item in items if item]
            if self.many:
                return [self._one(item) for item in items]
            for item in items:
                if "=" not in item:
                    raise UsageError(f"{source}: {item!r} must be written as key=value")
            return {key.strip(): self._one(value) for key, _, value in (item.partition("=") for item in items)}
        return self._one(given)

    def parse_toml(self, value: object, source: str, folder: Path) -> object:
        """The value of a TOML value. A relative path starts at the directory of the file."""
        if isinstance(value, bool) and not self.many and self.item in (int, float):
            raise UsageError(f"{source} must be a number, not {shown(value, quote=True)}")
        if isinstance(value, str):
            value = self.parse(value, source)
        elif isinstance(value, list) and self.many:
            value = [self._one(item) for item in value]
        if self.item is Path:
            if isinstance(value, list):
                return [folder / item if isinstance(item, str) else item for item in value]
            return folder / value if isinstance(value, str) else value
        return value

    def _one(self, given: object) -> object:
        if not isinstance(given, str):
            return given
        return os.path.expanduser(given) if self.item is Path else self.choices.get(given, given)


def setting_fields(
    model: type[BaseModel], path: tuple[str, ...] = (), instance: BaseModel | None = None
) -> Iterator[SettingField]:
    """The fields of a model and of the models in it. Defaults are those of `instance` if there is one."""
    for name, field in model.model_fields.items():
        default = getattr(instance, name) if instance is not None else default_of(field)
        inner = unwrap(field.annotation)[0]
        if is_model(inner):
            yield from setting_fields(inner, (*path, name), instance_of(default))
        else:
            yield SettingField((*path, name), field, default, _first_line(model.__doc__))


def default_of(field: FieldInfo) -> object:
    if field.is_required():
        return NOT_GIVEN
    if field.default_factory is None:
        return field.default
    return None if field.default_factory_takes_validated_data else field.get_default(call_default_factory=True)


def unwrap(annotation: Any) -> tuple[Any, bool]:
    """The type without Annotated and None, and whether None is allowed."""
    if get_origin(annotation) is Annotated:
        return unwrap(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        kinds = [kind for kind in get_args(annotation) if kind is not NoneType]
        optional = len(kinds) < len(get_args(annotation))
        return (unwrap(kinds[0])[0] if len(kinds) == 1 else Union[tuple(kinds)]), optional  # noqa: UP007
    return annotation, False


def _origin(kind: Any) -> Any:
    origin = get_origin(kind) or kind
    return list if origin in (Sequence, Collection) else origin


def is_model(kind: Any) -> bool:
    return isinstance(kind, type) and hasattr(kind, "model_fields")


def instance_of(default: Any) -> BaseModel | None:
    return default if is_model(type(default)) else None


def _first_line(text: str | None) -> str:
    return (text or "").strip().split("\n")[0]
