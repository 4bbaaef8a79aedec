"""Which package may import which, calls that are forbidden everywhere, and stubs that match the contract."""

from __future__ import annotations

import ast
import itertools
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = {p.name: p for p in (ROOT / d / f"puf_{d}" for d in ("common", "server", "client", "lab"))}
PACKAGES |= {f"puf_{d}": ROOT / "integrations" / d / f"puf_{d}" for d in ("embedded", "flower", "flare")}


# Which sub-packages (or modules directly in a package) each one may import from its own package. "*" means all.
ALLOWED: dict[str, dict[str, str]] = {
    "puf_common": {
        "__init__": "",
        "errors": "",
        "clock": "",
        "dates": "",
        "seeds": "",
        "logging": "",
        "malloc": "",
        "version": "",
        "names": "errors",
        "audit_chain": "errors",
        "files": "errors",
        "tensors": "v1 errors files",
        "receipts": "errors files dates",
        "network": "errors files logging names tensors",
        "config": "errors files version",
        "models": "errors config tensors",
        "tracing": "errors logging version",
    },
    "puf_server": {
        "__init__": "",
        "core": "",
        "failpoints": "",
        "plugins": "core",
        "storage": "core failpoints plugins",
        "aggregation": "core failpoints storage",
        "engine": "core failpoints storage aggregation",
        "ingest": "core failpoints storage engine",
        "pki": "",
        "admission": "core storage pki",
        "rpc": "core failpoints storage engine ingest admission",
        "maintenance": "core failpoints storage engine",
        "tracking": "core storage engine",
        "runtime": "core failpoints storage aggregation engine ingest admission rpc tracking",
        "dashboard": "",
        "cli": "*",
    },
    "puf_client": {
        "__init__": "api data tasks",
        "machine": "",
        "options": "",
        "tasks": "",
        "terminal": "",
        "data": "",
        "state": "",
        "transport": "",
        "routines": "data tasks",
        "session": "machine transport state",
        "worker": "machine options terminal tasks data state transport routines session",
        "api": "machine options terminal tasks data state transport routines session worker",
        "unlearning": "machine options terminal tasks data state transport routines session worker",
        "cli": "*",
    },
    "puf_lab": {
        "__init__": "experiments",
        "paper": "",
        "settings": "",
        "spec": "",
        "federations": "spec",
        "evaluation": "spec",
        "reporting": "spec paper evaluation",
        "experiments": "spec federations evaluation reporting",
        "demo": "spec federations evaluation reporting",
        "bench": "spec federations evaluation reporting",
        "cli": "*",
    },
    "puf_embedded": {
        "__init__": "",
        "arithmetic": "",
        "measuring": "arithmetic",
        "receipts": "",
        "records": "",
        "starting": "",
        "federation": "arithmetic receipts records starting",
    },
    "puf_flower": {
        "__init__": "",
        "wire": "",
        "nodes": "",
        "linear": "wire",
        "asking": "wire",
        "mod": "wire",
        "strategy": "asking linear nodes wire",
    },
    "puf_flare": {
        "__init__": "",
        "combine": "",
        "filters": "combine",
        "aggregator": "combine filters",
    },
}
# What each distribution package may import of the others.
DIRECTION = {
    "puf_common": set[str](),
    "puf_server": {"puf_common"},
    "puf_client": {"puf_common"},
    "puf_lab": {"puf_common", "puf_server", "puf_client"},
    # Of server and client only the rules: see ADAPTERS_MAY_IMPORT.
    "puf_embedded": {"puf_common", "puf_server", "puf_client"},
    "puf_flower": {"puf_common", "puf_server", "puf_client", "puf_embedded"},
    "puf_flare": {"puf_common", "puf_embedded"},
}
# These need neither torch nor gRPC nor the generated code of the contract.
ADAPTERS_MAY_IMPORT = ("puf_server.core", "puf_client.routines.dosing", "puf_client.routines.per_sample")
CORE_MAY_IMPORT = {
    "__future__", "collections", "dataclasses", "enum", "functools", "hashlib", "itertools", "json", "math", "random",
    "statistics",
    "typing", "pydantic", "numpy", "puf_common", "puf_server",
}  # fmt: skip
CORE_MAY_SHARE = {
    "errors",
    "audit_chain",
    "seeds",
    "dates",
    "tensors.manifest",
    "receipts.evidence",
    "receipts.ranks",
    "receipts.verdict",
    "receipts.content",
    "receipts.gap",
    "config.messages",
}


def imports(path: Path) -> Iterator[str]:
    """Dotted names that a file imports. `from a import b` gives a.b: b may be a module."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def sources(folder: Path) -> list[Path]:
    return [path for path in sorted(folder.rglob("*.py")) if path.parent.name != "v1"]


def part_of(path: Path, root: Path) -> str:
    """Sub-package of a file, or the module itself when it lies directly in the package."""
    first = path.relative_to(root).parts[0]
    return first.removesuffix(".py")


def forbidden_imports(package: str, root: Path) -> list[str]:
    """Imports of a package that the tables do not allow."""
    found = []
    for path in sources(root):
        part = part_of(path, root)
        allowed = ALLOWED[package].get(part)
        if allowed is None:
            found.append(f"{part} is not in the table of {package}")
            continue
        for name in imports(path):
            top, _, rest = name.partition(".")
            if top == package:
                to = rest.partition(".")[0]
                known = to == part or allowed == "*" or to in allowed.split()
            else:
                known = top not in DIRECTION or top in DIRECTION[package]
            if not known:
                found.append(f"{path.relative_to(root)} imports {name}")
    return found


@pytest.mark.parametrize("package", PACKAGES)
def test_every_sub_package_imports_only_what_the_table_allows(package: str) -> None:
    assert forbidden_imports(package, PACKAGES[package]) == []


@pytest.mark.parametrize(
    ("package", "file", "line"),
    [
        ("puf_server", "core/rounds.py", "from puf_server.storage import database"),
        ("puf_server", "storage/database.py", "import puf_server.rpc.requests"),
        ("puf_server", "engine/engine.py", "from puf_client.session import connect"),
        ("puf_server", "dashboard/pages.py", "from puf_server.core import tickets"),
        ("puf_client", "data/api.py", "from puf_client.cli.main import main"),
        ("puf_common", "errors.py", "from puf_common.tensors.manifest import Manifest"),
        ("puf_lab", "evaluation/attacks.py", "from puf_lab.reporting import results"),
    ],
)
def test_a_forbidden_import_is_found(package: str, file: str, line: str, tmp_path: Path) -> None:
    copy = tmp_path / package
    shutil.copytree(PACKAGES[package], copy, ignore=shutil.ignore_patterns("__pycache__", "v1"))
    changed = copy / file
    changed.write_text(changed.read_text() + f"\n{line}\n")
    assert [found for found in forbidden_imports(package, copy) if file in found]


def test_adapters_import_only_the_rules_of_server_and_client() -> None:
    for package in ("puf_embedded", "puf_flower", "puf_flare"):
        for path in sources(PACKAGES[package]):
            for name in imports(path):
                inside = name.partition(".")[0] not in ("puf_server", "puf_client")
                assert inside or name.startswith(ADAPTERS_MAY_IMPORT), f"{path.name} imports {name}"


@pytest.mark.parametrize("module", ["puf_embedded.federation", "puf_embedded.measuring", "puf_flare.combine"])
def test_the_rules_load_without_torch_and_without_generated_code(module: str) -> None:
    """Frameworks bring their own, older protobuf, which refuses our generated code."""
    program = f"import sys, {module}; print([m for m in sys.modules if m in ('torch', 'grpc') or m.endswith('_pb2')])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_core_imports_no_network_no_files_no_clocks() -> None:
    for path in sources(PACKAGES["puf_server"] / "core"):
        for name in imports(path):
            top, _, rest = name.partition(".")
            assert top in CORE_MAY_IMPORT, f"{path.name} imports {name}"
            if top == "puf_common":
                assert any(f"{rest}.".startswith(f"{shared}.") for shared in CORE_MAY_SHARE), f"{path.name}: {name}"


# Besides the standard library and puf_common.
DASHBOARD_MAY_IMPORT = {"starlette", "uvicorn", "jinja2", "grpc", "google", "puf_common", "puf_server"}


def test_the_dashboard_imports_only_the_contract_and_its_web_libraries() -> None:
    for path in sources(PACKAGES["puf_server"] / "dashboard"):
        tops = {name.partition(".")[0] for name in imports(path)}
        assert tops <= DASHBOARD_MAY_IMPORT | set(sys.stdlib_module_names), path.name


def test_only_the_dashboard_and_the_metrics_port_import_web_libraries() -> None:
    folder = PACKAGES["puf_server"]
    for path in sources(folder):
        used = {name.partition(".")[0] for name in imports(path)} & {"starlette", "uvicorn"}
        allowed = {"uvicorn"} if path.name == "metrics_http.py" else set()
        assert used <= allowed or part_of(path, folder) == "dashboard", path.name


MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 60
MAX_PARAMETERS = 8


def oversized(path: Path) -> Iterator[str]:
    """The file and its functions, if they are larger than the limits."""
    text = path.read_text()
    if text.count("\n") > MAX_FILE_LINES:
        yield f"{path.name} has {text.count(chr(10))} lines"
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
            parameters = sum(argument.arg not in ("self", "cls") for argument in arguments)
            if lines > MAX_FUNCTION_LINES or parameters > MAX_PARAMETERS:
                yield f"{path.name}:{node.lineno} {node.name} has {lines} lines and {parameters} parameters"


@pytest.mark.parametrize("package", PACKAGES)
def test_files_and_functions_stay_small(package: str) -> None:
    assert [found for path in sources(PACKAGES[package]) for found in oversized(path)] == []


@pytest.mark.parametrize(
    "text",
    ["x = 1\n" * 401, "def long():\n" + "    pass\n" * 60, "def wide(a, b, c, d, e, f, g, h, i): ...\n"],
    ids=["file", "function", "parameters"],
)
def test_a_large_file_or_function_is_found(text: str, tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text(text)
    assert list(oversized(path))


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
    subprocess.run([sys.executable, ROOT / "protos/generate.py", tmp_path], check=True, capture_output=True)
    made = {p.name: p.read_text() for p in tmp_path.iterdir()}
    assert len(made) == 4 * len(list((ROOT / "protos/puf/v1").glob("*.proto")))
    committed = PACKAGES["puf_common"] / "v1"
    assert made == {name: (committed / name).read_text() for name in made}


@pytest.mark.parametrize("file", ["federation", "operator", "tensors", "tickets"])
def test_the_contract_compiles_where_it_lies(file: str, tmp_path: Path) -> None:
    """With the command that the contract states, from the root of the repository."""
    command = [sys.executable, "-m", "grpc_tools.protoc", "-I", "protos", f"--descriptor_set_out={tmp_path / 'set'}"]
    subprocess.run([*command, f"puf/v1/{file}.proto"], check=True, capture_output=True, cwd=ROOT)
    assert f"puf/v1/{file}.proto".encode() in (tmp_path / "set").read_bytes()


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
