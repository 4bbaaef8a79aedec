"""The house keeps its shape: who may import whom, and stubs that match the contract."""

from __future__ import annotations

import ast
import itertools
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = {p.name: p for p in (ROOT / d / f"puf_{d}" for d in ("common", "server", "client", "lab"))}


def imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def sources(folder: Path) -> list[Path]:
    return [path for path in sorted(folder.rglob("*.py")) if path.parent.name != "v1"]


@pytest.mark.parametrize(
    ("package", "forbidden"),
    [
        ("puf_common", ("puf_server", "puf_client", "puf_lab")),
        ("puf_server", ("puf_client", "puf_lab")),
        ("puf_client", ("puf_server", "puf_lab")),
    ],
)
def test_imports_point_in_one_direction(package: str, forbidden: tuple[str, ...]) -> None:
    for path in sources(PACKAGES[package]):
        for name in imports(path):
            assert name.split(".")[0] not in forbidden, f"{path.relative_to(ROOT)} imports {name}"


def test_the_core_knows_neither_network_nor_files_nor_clocks() -> None:
    allowed = {
        "__future__", "collections", "dataclasses", "enum", "hashlib", "json", "math", "random", "typing", "pydantic",
        "numpy", "puf_common", "puf_server",
    }  # fmt: skip
    shared = {"errors", "seeds", "manifest", "evidence", "dates"}
    for path in sources(PACKAGES["puf_server"] / "core"):
        for name in imports(path):
            parts = name.split(".")
            assert parts[0] in allowed, f"{path.name} imports {name}"
            if parts[0] == "puf_server" and len(parts) > 1:
                assert parts[1] == "core", f"{path.name} imports {name}"
            if parts[0] == "puf_common" and len(parts) > 1:
                assert parts[1] in shared, f"{path.name} imports {name}"


def test_nothing_that_executes_foreign_bytes_is_imported() -> None:
    for package in PACKAGES.values():
        for path in sources(package):
            text = path.read_text()
            assert not {"pickle", "dill", "cloudpickle", "marshal", "shelve"} & {n.split(".")[0] for n in imports(path)}
            assert "torch.load(" not in text, path.name
            assert "shell=True" not in text, path.name


def test_the_committed_stubs_are_those_of_the_contract(tmp_path: Path) -> None:
    protos = sorted((ROOT / "protos/puf/v1").glob("*.proto"))
    command = [sys.executable, "-m", "grpc_tools.protoc", f"-Ipuf_common/v1={ROOT / 'protos/puf/v1'}"]
    command += [f"--{kind}_out={tmp_path}" for kind in ("python", "pyi", "grpc_python", "mypy_grpc")]
    command += [f"puf_common/v1/{path.name}" for path in protos]
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    subprocess.run(command, check=True, capture_output=True, env=os.environ | {"PATH": path})
    made = {p.name: p.read_text() for p in (tmp_path / "puf_common/v1").iterdir()}
    assert len(made) == 4 * len(protos)
    committed = PACKAGES["puf_common"] / "v1"
    assert made == {name: (committed / name).read_text() for name in made}


def test_every_call_of_the_contract_is_explained() -> None:
    for path in sorted((ROOT / "protos/puf/v1").glob("*.proto")):
        lines = path.read_text().splitlines()
        for before, line in itertools.pairwise(lines):
            if line.strip().startswith("rpc "):
                assert before.strip().startswith("//"), f"{path.name}: {line.strip()}"
