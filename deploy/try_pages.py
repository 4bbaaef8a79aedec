"""Runs the container commands of the pages on deployment and monitoring, in order, in a fresh copy of this tree.

    python deploy/try_pages.py

Without the pages' `docker build` (`up --build` also builds), Kubernetes and systemd. Needs a Docker engine and compose;
without them it prints a line and ends with 0.
"""

from __future__ import annotations

import os
import pty
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from trials import ROOT, check, engine_answers, found_compose, free_port, say

PROJECT = f"puf-pages-{os.getpid()}"


def blocks(page: str, title: str) -> list[list[str]]:
    """The lines of each command block below a heading."""
    text = (ROOT / "docs" / page).read_text()
    found = re.search(rf"^#+ {re.escape(title)}\n(.*?)(?=^#{{2,4}} |\Z)", text, re.DOTALL | re.MULTILINE)
    assert found is not None, f"{page} has no section {title!r}"
    return [block.strip().splitlines() for block in re.findall(r"```sh\n(.*?)```", found[1], re.DOTALL)]


def commands() -> list[str]:
    """All commands, in the order of a reader who follows both pages."""
    (first,) = blocks("deploy.md", "One machine: compose")
    (experiment,) = blocks("deploy.md", "An experiment, from nothing to a report")
    (overlays,) = blocks("deploy.md", "Overlays")
    backup = blocks("deploy-hosts.md", "Many machines")[-1]
    (logs,) = blocks("monitoring.md", "Logs")
    assert experiment[-1].startswith("docker compose down -v")
    return [*overlays, *first, *experiment[:-1], *backup, *logs, experiment[-1]]


def typed(line: str, directory: Path, env: dict[str, str]) -> tuple[int, str]:
    """Runs a command in a terminal, which some commands need. Returns its exit code and output."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(directory)
        os.execvpe("sh", ["sh", "-c", line], env)  # noqa: S606, S607
    shown = b""
    while True:
        try:
            some = os.read(terminal, 65536)
        except OSError:
            # Linux reports an error after the last writer closed the terminal.
            break
        if not some:
            break
        shown += some
    os.close(terminal)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), shown.decode(errors="replace").replace("\r\n", "\n")


def copied(directory: Path) -> None:
    """Copies the tracked files as they are now, and local wheels."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout  # noqa: S607
    wheels = [str(path.relative_to(ROOT)) for path in (ROOT / "deploy" / "docker" / "wheels").glob("*.whl")]
    for name in [*listed.split("\0"), *wheels]:
        if name and (ROOT / name).exists():
            (directory / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, directory / name)


def main() -> int:
    program = found_compose()
    if program is None or not engine_answers():
        print("skipped: no Docker engine is available, or neither `docker compose` nor `docker-compose` is installed")
        return 0
    ports = {name: str(free_port()) for name in ("PUF_PORT", "PUF_METRICS_PORT")}
    env = dict(os.environ) | ports | {"COMPOSE_PROJECT_NAME": PROJECT, "TERM": "dumb", "COLUMNS": "120"}
    with tempfile.TemporaryDirectory() as scratch:
        directory = Path(scratch)
        copied(directory)
        outputs = {}
        try:
            for line in commands():
                started = time.monotonic()
                code, shown = typed(line.replace("docker compose", " ".join(program)), directory, env)
                command = line.partition("  #")[0].strip()
                check(f"{command}   ({time.monotonic() - started:.1f} s)", code == 0, f"\n{code}: {shown}")
                outputs[command] = shown
        finally:
            subprocess.run([*program, "-p", PROJECT, "down", "-v", "-t", "5"], cwd=ROOT, capture_output=True)
            say("containers removed")
        forgotten = next(shown for command, shown in outputs.items() if "--unlearn" in command)
        check("the third replica was forgotten", "request of client-3 was applied" in forgotten, forgotten)
        files = sorted(path.name for path in [*directory.glob("*.*"), *(directory / "receipts").glob("*")])
        wanted = ("model.safetensors", "monday.tar", "receipt-")
        check("model, backup and receipts are on the host", all(any(w in f for f in files) for w in wanted), files)
    print("all checks passed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
