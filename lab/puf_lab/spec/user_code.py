"""Digest of the user's code. It is part of a result's name, so changed code gets new runs."""

from __future__ import annotations

import ast
import hashlib
import sys
import sysconfig
from collections.abc import Iterator
from importlib.util import find_spec, resolve_name
from pathlib import Path

from puf_common.config import plugins

_LIBRARIES = tuple(sysconfig.get_paths()[key] for key in ("stdlib", "platstdlib", "purelib", "platlib"))
_OURS = ("puf_common", "puf_server", "puf_client", "puf_lab")


def digest(spec: str) -> str:
    """Digest of the file behind package.module:name and of the user's files that it imports. Empty for built-in names."""
    if ":" not in spec:
        return ""
    plugins.load(spec)
    name = spec.partition(":")[0]
    path = getattr(sys.modules[name], "__file__", None)
    files = {name: Path(path)} if path else {}
    waiting = [name] if _is_users(name, path) else []
    while waiting:
        for imported in _imports(files[waiting[-1]], waiting.pop()):
            found = _found(imported)
            if found is not None and imported not in files:
                files[imported] = found
                waiting.append(imported)
    parts = [f"{name} {hashlib.sha256(file.read_bytes()).hexdigest()}" for name, file in sorted(files.items())]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:20] if parts else ""


def _imports(path: Path, module: str) -> Iterator[str]:
    """Names of the modules that a file may import, anywhere in it. Some of them are functions or do not exist."""
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Import):
            for alias in node.names:
                parts = alias.name.split(".")
                yield from (".".join(parts[:end]) for end in range(1, len(parts) + 1))
        elif isinstance(node, ast.ImportFrom):
            base = resolve_name("." * node.level + (node.module or ""), package) if node.level else str(node.module)
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)


def _found(name: str) -> Path | None:
    """The file of a module of the user's. None for libraries, our own code, and names that are no module."""
    if name.split(".")[0] in (*_OURS, *sys.stdlib_module_names):
        return None
    try:
        spec = find_spec(name)
    except (ImportError, ValueError):
        return None
    origin = spec.origin if spec is not None and spec.has_location else None
    return Path(origin) if origin and origin.endswith(".py") and _is_users(name, origin) else None


def _is_users(name: str, path: str | None) -> bool:
    return path is not None and name.split(".")[0] not in _OURS and not path.startswith(_LIBRARIES)
