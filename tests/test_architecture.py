"""The house keeps its shape: who may import whom, and stubs that match the contract."""

from __future__ import annotations

import ast
import itertools
import os
import re
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
        "__future__", "collections", "dataclasses", "enum", "hashlib", "json", "math", "random", "statistics", "typing",
        "pydantic", "numpy", "puf_common", "puf_server",
    }  # fmt: skip
    shared = {"errors", "seeds", "tensors", "receipts", "dates"}
    for path in sources(PACKAGES["puf_server"] / "core"):
        for name in imports(path):
            parts = name.split(".")
            assert parts[0] in allowed, f"{path.name} imports {name}"
            if parts[0] == "puf_server" and len(parts) > 1:
                assert parts[1] == "core", f"{path.name} imports {name}"
            if parts[0] == "puf_common" and len(parts) > 1:
                assert parts[1] in shared, f"{path.name} imports {name}"


# Modules that turn bytes into objects or code, and calls that do.
FORBIDDEN_MODULES = {
    "pickle", "cPickle", "_pickle", "dill", "cloudpickle", "marshal", "shelve", "joblib", "jsonpickle", "yaml", "code",
    "codeop", "pty",
}  # fmt: skip
FORBIDDEN_CALLS = {
    "eval", "exec", "compile", "__import__", "torch.load", "torch.hub.load", "torch.jit.load", "yaml.load", "os.system",
    "os.popen", "np.load", "numpy.load", "np.fromfile", "subprocess.getoutput", "subprocess.getstatusoutput",
    "asyncio.create_subprocess_shell", "create_subprocess_shell", "pandas.read_pickle", "pd.read_pickle",
}  # fmt: skip
FORBIDDEN_NAMES = {
    "torch.load",
    "os.system",
    "os.popen",
    "numpy.fromfile",
    "asyncio.create_subprocess_shell",
    "numpy.load",
}


def dangers(tree: ast.AST) -> Iterator[str]:
    """What in a program could run bytes that came from elsewhere."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (a.name for a in node.names if a.name.split(".")[0] in FORBIDDEN_MODULES)
        elif isinstance(node, ast.ImportFrom) and node.module:
            if node.module.split(".")[0] in FORBIDDEN_MODULES:
                yield node.module
            yield from (f"{node.module}.{a.name}" for a in node.names if f"{node.module}.{a.name}" in FORBIDDEN_NAMES)
        elif isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            if called in FORBIDDEN_CALLS:
                yield called
            for keyword in node.keywords:
                wanted = not (isinstance(keyword.value, ast.Constant) and not keyword.value.value)
                if keyword.arg in ("shell", "allow_pickle") and wanted:
                    yield f"{called}({keyword.arg}=...)"


def test_nothing_that_executes_foreign_bytes_is_used() -> None:
    for folder in (*PACKAGES.values(), ROOT / "examples"):
        for path in sources(folder):
            found = list(dangers(ast.parse(path.read_text())))
            assert not found, f"{path.relative_to(ROOT)}: {found}"


@pytest.mark.parametrize(
    "line",
    [
        "import pickle", "from joblib import load", "from torch import load", "import torch; torch.load(f)",
        "import os; os.system(x)", "eval(x)", "exec(x)", "import yaml", "np.load(f, allow_pickle=True)",
        "subprocess.run(x, shell=True)", "subprocess.run(x, shell=flag)", "from os import system",
        "asyncio.create_subprocess_shell(x)", "__import__(x)",
    ],
)  # fmt: skip
def test_the_test_above_sees_what_it_forbids(line: str) -> None:
    assert list(dangers(ast.parse(line)))


def test_every_proof_that_the_security_page_names_exists() -> None:
    page = (ROOT / "SECURITY.md").read_text()
    named = re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", page)
    assert len(named) > 30
    for file, test in named:
        functions = {n.name for n in ast.walk(ast.parse((ROOT / file).read_text())) if isinstance(n, ast.FunctionDef)}
        assert test in functions, f"SECURITY.md names {file}::{test}"


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


DECLARED = re.compile(r"\s*((message|enum|rpc)\s+\w+|[\w<][\w<>., ]*=\s*\d+\s*[;\[])")


def unexplained(proto: str) -> list[str]:
    """Calls, messages, fields and enum values without a sentence directly above or at the end of their line.

    What stands for "not said", NAME_UNSPECIFIED = 0, may go without.
    """
    bare = []
    for before, line in itertools.pairwise(["", *proto.splitlines()]):
        said = before.strip().startswith("// ") or "// " in line
        if DECLARED.match(line) and not said and not re.search(r"_UNSPECIFIED = 0;", line):
            bare.append(line.strip())
    return bare


def test_every_call_of_the_contract_is_explained() -> None:
    protos = sorted((ROOT / "protos/puf/v1").glob("*.proto"))
    assert protos
    for path in protos:
        assert not unexplained(path.read_text()), path.name


@pytest.mark.parametrize(
    "line",
    [
        "message Empty {}", "message Full {", "enum Kind {", "  rpc Call(A) returns (stream B);", "  KIND_ONE = 1;",
        "  optional uint64 count = 3;", "  repeated string names = 4;", "  map<string, double> options = 5;",
        "  puf.v1.Chunk chunk = 6 [deprecated = true];", "    double nested = 7;",
    ],
)  # fmt: skip
def test_the_test_above_sees_what_lacks_a_sentence(line: str) -> None:
    assert unexplained(f"// What came before.\nuint64 other = 1;\n{line}\n") == [line.strip()]
    assert not unexplained(f"// Why.\n{line}\n")
    assert not unexplained(f"{line}  // Why.\n")
