"""The user's code, named by a local flag as package.module:name.

An error in the user's code becomes one line with its file and line number.
"""

from __future__ import annotations

import importlib
import os
import sys
import sysconfig
import traceback
from collections.abc import Callable
from types import ModuleType
from typing import Any

from puf_common.errors import PufError, UsageError


def load(spec: str) -> Callable[..., Any]:
    """The function or class of "package.module:name". The current directory is searched first."""
    name, colon, attribute = spec.partition(":")
    if not (colon and attribute.isidentifier() and all(part.isidentifier() for part in name.split("."))):
        raise UsageError(f"{spec!r} must be package.module:name, e.g. my_task:load")
    here = os.getcwd()
    if not {"", here} & set(sys.path):
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise _located(f"cannot import {name}", error) from error
        raise UsageError(
            f"there is no module {name}: looked in {here} and the installed packages; is {name.split('.')[0]}.py there?"
        ) from None
    except PufError:
        raise
    except Exception as error:
        raise _located(f"cannot import {name}", error) from error
    try:
        found = getattr(module, attribute)
    except AttributeError:
        offered = ", ".join(n for n, v in vars(module).items() if callable(v) and getattr(v, "__module__", "") == name)
        raise UsageError(
            f"{module.__file__ or name} has no {attribute}; it defines {offered or 'no function'}"
        ) from None
    if not callable(found):
        raise UsageError(f"{spec} is a {type(found).__name__}; it must be a function or a class")
    called: Callable[..., Any] = found
    return called


def call(function: Callable[..., Any], *arguments: object) -> Any:
    """The result of the user's function. Its exceptions become a UsageError; a PufError passes through."""
    try:
        return function(*arguments)
    except PufError:
        raise
    except Exception as error:
        raise _located(f"{getattr(function, '__qualname__', function)} failed", error) from error


def plugin_version(plugin: object) -> str:
    """`__version__` of a module, or of the module that defines a function or class; "" if it has none."""
    module = plugin if isinstance(plugin, ModuleType) else sys.modules.get(getattr(plugin, "__module__", None) or "")
    return str(getattr(module, "__version__", ""))


def _located(what: str, error: Exception) -> UsageError:
    """The error in one line with the place in the user's code."""
    text = " ".join(str(error).split())
    if isinstance(error, SyntaxError):
        text = error.msg
    return UsageError(f"{what}: {_where(error)}: {type(error).__name__}{': ' if text else ''}{text}")


def _where(error: Exception) -> str:
    """File and line in the user's code, even if a library that it called raised the exception."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}, line {error.lineno}"
    ours = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    libraries = (*(sysconfig.get_paths()[key] for key in ("stdlib", "platstdlib", "purelib", "platlib")), "<", ours)
    frames = traceback.extract_tb(error.__traceback__)
    theirs = [frame for frame in frames if not frame.filename.startswith(libraries)] or frames
    return f"{theirs[-1].filename}, line {theirs[-1].lineno}"
