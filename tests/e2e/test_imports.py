"""The imports of commands: serving without torch, help without heavy packages."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.e2e

# Runs main with the arguments and writes the imported modules to stderr.
_MAIN = (
    "import sys; from importlib import import_module; main = import_module(sys.argv[1]).main; code = main(sys.argv[2:]); "
    "sys.stderr.write(' '.join(sys.modules)); sys.exit(code)"
)


@pytest.mark.parametrize("package", ["puf_server", "puf_client"])
@pytest.mark.parametrize("flags", [["--help"], ["-h"]])
def test_help_loads_nothing_heavy(package: str, flags: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _MAIN, f"{package}.cli.main", *flags], capture_output=True, text=True, check=True
    )
    assert "COMMAND" in done.stdout
    assert not set(done.stderr.split()) & {"torch", "grpc", "numpy", "pydantic", "structlog", "rich"}


def test_serving_loads_no_torch() -> None:
    code = (
        "import sys, puf_server.cli.main, puf_server.cli.serve, puf_server.runtime.server; "
        "import puf_server.cli.operator_client, puf_server.cli.tables; "
        "print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert "puf_server.engine.engine" in loaded
    assert not loaded & {"torch", "torchvision", "timm", "sklearn", "puf_client"}
