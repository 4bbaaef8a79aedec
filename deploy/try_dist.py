"""`make dist`: builds sdist and wheel, installs the wheel in a new environment and runs the commands and the demo from it.

The wheel is built from the sdist, so the sdist is complete if the wheel works. The environment has the pinned versions.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
PROGRAMS = ("puf-server", "puf-client", "puf-lab")
# What the demo needs beside the extra "train". The other packages of the extra "lab" are large.
DEMO = ("matplotlib", "psutil")


def main() -> int:
    parser = argparse.ArgumentParser(description="Build the distribution, install it and try it.")
    parser.add_argument("--dist", type=Path, default=ROOT / "dist", metavar="DIR", help="directory of the archives")
    parser.add_argument("--build-only", action="store_true", help="do not install and try the wheel")
    options = parser.parse_args()
    wheel = build(options.dist.resolve())
    if not options.build_only:
        with tempfile.TemporaryDirectory(prefix="puf-dist-") as directory:
            attempt(wheel, Path(directory))
    print(f"{wheel.name} and its sdist are in {wheel.parent}")
    return 0


def build(dist: Path) -> Path:
    """Returns the wheel. The build uses the installed back end, no network."""
    for old in dist.glob("puf_fl-*"):
        old.unlink()
    _run(_uv(), "build", "--quiet", "--no-build-isolation", "--python", sys.executable, "-o", str(dist), str(ROOT))
    [wheel], [_] = list(dist.glob("*.whl")), list(dist.glob("*.tar.gz"))
    return wheel


def attempt(wheel: Path, directory: Path) -> None:
    """Installs the wheel in a new environment and runs it from a directory without the sources."""
    python = directory / "env" / "bin" / "python"
    _run(sys.executable, "-m", "venv", str(directory / "env"))
    pins = directory / "pins.txt"
    pins.write_text("\n".join(pinned((ROOT / "requirements.txt").read_text())))
    installed = [f"{wheel}[train]", *DEMO]
    _run(_uv(), "pip", "install", "--quiet", "--python", str(python), "--constraints", str(pins), *installed)
    version = wheel.name.split("-")[1]
    for program in PROGRAMS:
        shown = _run(str(python.parent / program), "--version", cwd=directory)
        assert shown == f"{program} {version}\n", shown
    print(_run(str(python.parent / "puf-lab"), "demo", "--out", str(directory / "demo"), cwd=directory))


def pinned(requirements: str) -> list[str]:
    """Returns name, version and condition of every requirement, without hashes."""
    return [line.rstrip(" \\") for line in requirements.splitlines() if re.match(r"[A-Za-z0-9]", line)]


def _uv() -> str:
    return str(Path(sys.executable).parent / "uv")


def _run(*command: str, cwd: Path | None = None) -> str:
    # Neither the sources nor another environment may serve an import.
    env = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run(command, cwd=cwd, env=env, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        sys.exit(f"{done.stdout}\nfailed: {' '.join(command)}")
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
