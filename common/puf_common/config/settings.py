"""From pydantic models to command lines: flags > PUF_* variables > a TOML file > defaults.

A field `batch_size: int = Field(32, ge=1, description="...")` becomes the flag `--batch-size`, the variable
`PUF_BATCH_SIZE` and the TOML key `batch_size`; its description is the help text. A field that is itself a model is a
TOML table, its variables carry the field's name (`PUF_TLS_CERT`) and, where `add_settings(nested=True)` asks for it,
so do its flags (`--tls-cert`). Lists are repeated or comma-separated, string tables are `key=value`, `none` clears an
optional field. `json_schema_extra={"metavar": "HOST:PORT"}` names the value in the help.

Whoever shows help waits for this module: it costs argparse alone, pydantic comes with the caller's models.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from pathlib import Path
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn, TypeVar, Union, get_args, get_origin

from puf_common.config.exit_codes import Exit
from puf_common.errors import (
    Forgotten,
    InvalidArgument,
    NotAuthenticated,
    NotNow,
    NotYours,
    PufError,
    Superseded,
    Unavailable,
    UsageError,
)

if TYPE_CHECKING:
    from pydantic import BaseModel
    from pydantic.fields import FieldInfo
    from pydantic_core import ErrorDetails

__all__ = ["Parser", "add_settings", "exit_code", "guarded", "read_toml", "resolve"]

M = TypeVar("M", bound="BaseModel")

_PREFIX = "PUF_"
_NOT_GIVEN = object()
_METAVARS = {int: "N", float: "X", str: "TEXT", Path: "PATH"}
_SEQUENCES = (list, tuple, set, frozenset)
_EPILOG = (
    "Each flag --some-name may also be set as PUF_SOME_NAME in the environment or as some_name in the file "
    "given with --config; flags go before the environment, the environment before the file."
)


class Parser(argparse.ArgumentParser):
    """An argument parser that raises UsageError with one line and proposes the flag that was probably meant."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        # An abbreviation that works today would break when a flag is added.
        kwargs.setdefault("allow_abbrev", False)
        super().__init__(*args, **kwargs)

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message.removeprefix('argument ')} (see {self.prog} --help)")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        # Raised here, not in parse_args, so that a subcommand's own flags are the ones proposed.
        known, unknown = super().parse_known_args(args, namespace)
        if unknown:
            flag = next((word for word in unknown if word.startswith("-")), unknown[0]).split("=")[0]
            kind = "flag" if flag.startswith("-") else "argument"
            self.error(f"unknown {kind} {flag}{_meant(flag, self._option_string_actions)}")
        return known, []

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            allowed = [str(choice) for choice in action.choices]
            raise argparse.ArgumentError(
                action, f"{value!r} is not one of {', '.join(allowed)}{_meant(str(value), allowed)}"
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
    for leaf in _leaves(model):
        above = leaf.path[:-1]
        if leaf.key in skip or not leaf.textual or (above and not nested):
            continue
        if above not in groups:
            groups[above] = parser.add_argument_group(".".join(above), leaf.about)
        groups[above].add_argument(leaf.flag, dest=leaf.key, default=argparse.SUPPRESS, **leaf.argument())


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
        chosen = given.get("config") or env.get(f"{_PREFIX}CONFIG")
        toml = Path(chosen) if chosen else {}
    name, folder = (toml.name, toml.parent) if isinstance(toml, Path) else ("configuration", Path())
    table = read_toml(toml) if isinstance(toml, Path) else toml
    _refuse_unknown(table, (model, *also), name)

    tree: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for leaf in _leaves(model):
        if leaf.key in given:
            value, source = leaf.parse(given[leaf.key], leaf.flag), leaf.flag
        elif leaf.textual and env.get(leaf.variable):
            value, source = leaf.parse(env[leaf.variable], leaf.variable), leaf.variable
        else:
            source = f"{name}: {leaf.key}"
            value = leaf.parse_toml(_lookup(table, leaf.path, name), source, folder)
        if value is not _NOT_GIVEN:
            sources[leaf.key] = source
            _branch(tree, leaf.path)[leaf.path[-1]] = value
    _complete(model, tree)
    try:
        return model.model_validate(tree)
    except ValidationError as error:
        raise UsageError("\n".join(_sentences(error.errors(include_url=False), model, sources))) from None


def read_toml(path: Path) -> dict[str, object]:
    """The tables of a TOML file; whatever is wrong with the file is a UsageError that names it."""
    import tomllib

    try:
        with open(os.path.expanduser(path), "rb") as file:
            return tomllib.load(file)
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is not valid TOML: {error}") from None


def guarded(main: Callable[[], int]) -> int:
    """Runs a command: errors become one line on stderr and an exit code, tracebacks only with PUF_DEBUG=1."""
    try:
        code = main()
        sys.stdout.flush()
        return code
    except SystemExit as stop:
        if stop.code is None or isinstance(stop.code, int):
            return stop.code or 0
        return _failed(str(stop.code), Exit.FAILURE)
    except KeyboardInterrupt:
        return _failed("interrupted", Exit.INTERRUPTED)
    except BrokenPipeError:
        # Whoever read the output has left. The interpreter flushes once more at exit: let that go nowhere.
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return Exit.FAILURE
    except PufError as error:
        return _failed(error.message, exit_code(error))
    except Exception as error:
        if isinstance(error, OSError) and error.filename is not None:
            return _failed(f"{error.filename}: {error.strerror}", Exit.FAILURE)
        if _is_out_of_memory(error):
            told = " ".join(str(error).split())
            return _failed(
                f"out of memory: make the model or the data smaller, or free some memory ({told})", Exit.FAILURE
            )
        return _failed(f"internal error: {error!r}; rerun with PUF_DEBUG=1 to see where", Exit.FAILURE)


def _is_out_of_memory(error: Exception) -> bool:
    """torch has an error of its own for GPUs and none for the CPU; it is not imported here to ask."""
    text = str(error).lower()
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and ("out of memory" in text or "can't allocate memory" in text)
    )


def exit_code(error: PufError) -> Exit:
    """What a script sees of an error."""
    codes: tuple[tuple[type[PufError], Exit], ...] = (
        (UsageError, Exit.USAGE),
        (InvalidArgument, Exit.USAGE),
        (Unavailable, Exit.UNREACHABLE),
        (Forgotten, Exit.FORGOTTEN),
        (Superseded, Exit.SUPERSEDED),
        (NotYours, Exit.REFUSED),
        (NotNow, Exit.REFUSED),
        (NotAuthenticated, Exit.REFUSED),
    )
    return next((code for kind, code in codes if isinstance(error, kind)), Exit.FAILURE)


def _failed(message: str, code: Exit) -> Exit:
    if os.environ.get("PUF_DEBUG", "0") not in ("", "0"):
        import traceback

        traceback.print_exc()
    # Text from the other side of a network must not steer the terminal.
    for line in message.splitlines():
        safe = "".join(c if c.isprintable() else repr(c)[1:-1] for c in line)
        sys.stderr.write(f"error: {safe}\n")
    return code


@dataclass(frozen=True)
class _Leaf:
    """One field that is not itself a model, and how it is written as text."""

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
        return _PREFIX + "_".join(self.path).upper()

    @cached_property
    def plain(self) -> tuple[Any, bool]:
        return _unwrap(self.field.annotation)

    @property
    def many(self) -> bool:
        return _origin(self.plain[0]) in _SEQUENCES

    @property
    def table(self) -> bool:
        return _origin(self.plain[0]) in (dict, Mapping)

    @cached_property
    def item(self) -> Any:
        """The type of one piece of text: the elements of a list, the values of a table, else the type itself."""
        arguments = [a for a in get_args(self.plain[0]) if a is not Ellipsis]
        if self.many:
            return _unwrap(arguments[0])[0] if arguments else str
        if self.table:
            return _unwrap(arguments[1])[0] if len(arguments) > 1 else str
        return self.plain[0]

    @property
    def textual(self) -> bool:
        """Lists of tables and the like have no text form: they live in the file only."""
        kinds = [_unwrap(kind)[0] for kind in get_args(self.item)] or [self.item]
        return not any(_is_model(kind) or _origin(kind) in (*_SEQUENCES, dict, Mapping) for kind in kinds)

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
        """What argparse needs to know beyond the flag's name."""
        text = f"{(self.field.description or '').rstrip('.')} ({self.shown_default()})".strip().replace("%", "%%")
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
        if self.default is _NOT_GIVEN:
            return "required"
        return "default: set" if self.secret and self.default else f"default: {_shown(self.default)}"

    def parse(self, given: object, source: str) -> object:
        """The value behind a text or a list of texts; what pydantic converts by itself is left to it."""
        if self.plain[1] and isinstance(given, str) and given.lower() == "none":
            return None
        if self.many or self.table:
            texts = [given] if isinstance(given, str) else given
            if not isinstance(texts, Iterable):
                return given
            # A repeated key=value may contain commas; a list on one line may not.
            split = self.many or isinstance(given, str)
            pieces = [piece.strip() for text in texts for piece in (str(text).split(",") if split else [str(text)])]
            pieces = [piece for piece in pieces if piece]
            if self.many:
                return [self._one(piece) for piece in pieces]
            for piece in pieces:
                if "=" not in piece:
                    raise UsageError(f"{source}: {piece!r} must be written as key=value")
            return {key.strip(): self._one(value) for key, _, value in (piece.partition("=") for piece in pieces)}
        return self._one(given)

    def parse_toml(self, value: object, source: str, folder: Path) -> object:
        """TOML has types of its own; its relative paths start at the file, wherever the command runs."""
        if isinstance(value, bool) and not self.many and self.item in (int, float):
            raise UsageError(f"{source} must be a number, not {_shown(value, quote=True)}")
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


def _leaves(model: type[BaseModel], path: tuple[str, ...] = (), instance: BaseModel | None = None) -> Iterator[_Leaf]:
    for name, field in model.model_fields.items():
        default = getattr(instance, name) if instance is not None else _default(field)
        inner = _unwrap(field.annotation)[0]
        if _is_model(inner):
            yield from _leaves(inner, (*path, name), _instance(default))
        else:
            yield _Leaf((*path, name), field, default, _first_line(model.__doc__))


def _complete(model: type[BaseModel], tree: dict[str, Any], instance: BaseModel | None = None) -> None:
    """Makes room for required tables, and keeps the parent's defaults for a table of which only a part was given."""
    if instance is not None:
        for name in model.model_fields:
            tree.setdefault(name, getattr(instance, name))
    for name, field in model.model_fields.items():
        inner, optional = _unwrap(field.annotation)
        if not _is_model(inner):
            continue
        default = getattr(instance, name) if instance is not None else _default(field)
        if field.is_required() and not optional and instance is None:
            tree.setdefault(name, {})
        if isinstance(tree.get(name), dict):
            _complete(inner, tree[name], _instance(default))


def _sentences(errors: list[ErrorDetails], model: type[BaseModel], sources: Mapping[str, str]) -> list[str]:
    leaves = {leaf.key: leaf for leaf in _leaves(model)}
    wrong: dict[str, str] = {}
    for error in errors:
        parts = [str(part) for part in error["loc"]]
        key = next((k for n in range(len(parts), 0, -1) if (k := ".".join(parts[:n])) in leaves), ".".join(parts))
        leaf = leaves.get(key)
        message = error["msg"].removeprefix("Value error, ").removeprefix("Assertion failed, ")
        if leaf is None:
            wrong[key] = f"{key}: {message}" if key else message
        elif error["type"] == "missing" and key not in sources:
            flag = f"{leaf.flag}, " if len(leaf.path) == 1 else ""
            wrong[key] = f"{key} is required: set {flag}{leaf.variable} or {key} in the file given with --config"
        elif not message.startswith("Input should be "):
            wrong[key] = f"{sources.get(key, leaf.flag)}: {message}"
        else:
            must = message.removeprefix("Input should be ").split(", unable to")[0].split(", got a number")[0]
            if key in wrong:  # one more branch of a union
                wrong[key] = wrong[key].replace(", not ", f" or {must}, not ", 1)
                continue
            shown = "this value" if leaf.secret else _shown(error["input"], quote=True)
            meant = _meant(str(error["input"]), leaf.choices)
            wrong[key] = f"{sources.get(key, leaf.flag)} must be {must}, not {shown}{meant}"
    return list(wrong.values())


def _refuse_unknown(table: Mapping[str, object], models: Sequence[type[BaseModel]], name: str, above: str = "") -> None:
    fields: dict[str, list[Any]] = {}
    for model in models:
        for key, field in model.model_fields.items():
            fields.setdefault(key, []).append(_unwrap(field.annotation)[0])
    for key, value in table.items():
        if key not in fields:
            raise UsageError(f"{name}: unknown key {above}{key}{_meant(key, fields)}")
        kinds = fields[key]
        items = [value]
        if isinstance(value, list):
            items = value
            kinds = [_unwrap(get_args(kind)[0])[0] for kind in kinds if get_args(kind)]
        inner = [kind for kind in kinds if _is_model(kind)]
        for item in items:
            if inner and isinstance(item, Mapping):
                _refuse_unknown(item, inner, name, f"{above}{key}.")


def _lookup(table: Mapping[str, object], path: tuple[str, ...], name: str) -> object:
    value: object = table
    for depth, part in enumerate(path):
        if not isinstance(value, Mapping):
            raise UsageError(f"{name}: {'.'.join(path[:depth])} must be a table, not {_shown(value, quote=True)}")
        if part not in value:
            return _NOT_GIVEN
        value = value[part]
    return value


def _branch(tree: dict[str, Any], path: tuple[str, ...]) -> dict[str, Any]:
    for part in path[:-1]:
        tree = tree.setdefault(part, {})
    return tree


def _default(field: FieldInfo) -> object:
    if field.is_required():
        return _NOT_GIVEN
    if field.default_factory is None:
        return field.default
    return None if field.default_factory_takes_validated_data else field.get_default(call_default_factory=True)


def _unwrap(annotation: Any) -> tuple[Any, bool]:
    """The type without Annotated and None, and whether None is allowed."""
    if get_origin(annotation) is Annotated:
        return _unwrap(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        kinds = [kind for kind in get_args(annotation) if kind is not NoneType]
        optional = len(kinds) < len(get_args(annotation))
        return (_unwrap(kinds[0])[0] if len(kinds) == 1 else Union[tuple(kinds)]), optional  # noqa: UP007
    return annotation, False


def _origin(kind: Any) -> Any:
    origin = get_origin(kind) or kind
    return list if origin in (Sequence, Collection) else origin


def _is_model(kind: Any) -> bool:
    return isinstance(kind, type) and hasattr(kind, "model_fields")


def _instance(default: Any) -> BaseModel | None:
    return default if _is_model(type(default)) else None


def _meant(word: str, known: Iterable[str]) -> str:
    from difflib import get_close_matches

    forms = {name.replace("-", "_").lower(): name for name in known}
    near = get_close_matches(word.replace("-", "_").lower(), forms, 1)
    return f"; did you mean {forms[near[0]]}?" if near else ""


def _shown(value: object, *, quote: bool = False) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower() if quote else ("yes" if value else "no")
    if isinstance(value, Enum):
        return str(value.value)
    if isinstance(value, Mapping) and not quote:
        return ",".join(f"{key}={_shown(item)}" for key, item in value.items()) or "empty"
    if isinstance(value, (list, tuple, set, frozenset)) and not quote:
        return ",".join(map(_shown, value)) or "empty"
    text = repr(value) if quote else str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _first_line(text: str | None) -> str:
    return (text or "").strip().split("\n")[0]
