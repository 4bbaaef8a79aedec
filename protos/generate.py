"""Generates the Python stubs of the contract: `python protos/generate.py DIRECTORY`.

The compiler derives the import path of a stub from the path of its .proto file, puf/v1. The stubs belong to puf_common.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

PROTOS = Path(__file__).parent
KINDS = ("python", "pyi", "grpc_python", "mypy_grpc")


def generate(directory: Path) -> None:
    """Writes all stubs to a directory."""
    files = sorted(path.relative_to(PROTOS).as_posix() for path in PROTOS.glob("puf/v1/*.proto"))
    # The plug-in for types is a program beside this Python.
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    with tempfile.TemporaryDirectory() as made:
        outputs = [f"--{kind}_out={made}" for kind in KINDS]
        command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{PROTOS}", *outputs, *files]
        subprocess.run(command, check=True, env=os.environ | {"PATH": path})
        for stub in (Path(made) / "puf/v1").iterdir():
            (directory / stub.name).write_text(as_module_of_puf_common(stub.read_text()))


def as_module_of_puf_common(stub: str) -> str:
    """The stub with names of Python modules changed. Names of messages and calls, such as puf.v1.Federation, stay."""
    return re.sub(r"\bpuf\.v1(?= import \w+_pb2|\.\w+_pb2)", "puf_common.v1", stub)


if __name__ == "__main__":
    generate(Path(sys.argv[1]))
