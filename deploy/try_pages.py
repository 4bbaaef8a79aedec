"""Runs the container commands of README.md and of the pages on deployment, dashboard and monitoring, in a copy of this tree.

    python deploy/try_pages.py

Without Kubernetes and systemd. TRAIN in the environment lists the packages for training, as for compose. Where images of
Prometheus and Grafana are not available, Prometheus is Debian's, and Grafana is not started. Needs a Docker engine and
compose; without them it prints a line and ends with 0.
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

import try_monitoring
from trials import ROOT, available, check, docker, engine_answers, found_compose, free_port, say

PROJECT = f"puf-pages-{os.getpid()}"
PORTS = ("PUF_PORT", "PUF_METRICS_PORT", "PUF_DASHBOARD_PORT", "PROMETHEUS_PORT", "GRAFANA_PORT")
MONITORED = ["-f", "docker-compose.yml", "-f", "deploy/monitoring.yml"]
# The services of the page's command where Grafana's image is not available.
WITHOUT_GRAFANA = " client dashboard prometheus"


def blocks(page: str, title: str, language: str = "sh") -> list[list[str]]:
    """The lines of each block below a heading."""
    text = (ROOT / page).read_text()
    found = re.search(rf"^#+ {re.escape(title)}\n(.*?)(?=^#{{2,4}} |\Z)", text, re.DOTALL | re.MULTILINE)
    assert found is not None, f"{page} has no section {title!r}"
    return [block.strip().splitlines() for block in re.findall(rf"```{language}\n(.*?)```", found[1], re.DOTALL)]


def plain(line: str) -> str:
    """A command without its remark."""
    return line.partition("  #")[0].strip()


def commands() -> list[str]:
    """All commands, in the order of a reader who follows the pages."""
    (overlays,) = blocks("docs/deploy.md", "Overlays")
    images, own_code = blocks("docs/deploy.md", "Images")
    (first,) = blocks("docs/deploy.md", "One machine: compose")
    (experiment,) = blocks("docs/deploy.md", "An experiment, from nothing to a report")
    backup = blocks("docs/deploy-hosts.md", "Many machines")[-1]
    (logs,) = blocks("docs/monitoring.md", "Logs")
    (password,) = blocks("docs/dashboard.md", "Containers")
    (monitored,) = blocks("docs/monitoring.md", "Dashboard and alerts")
    (shortest,) = blocks("README.md", "Containers")
    *rest, down = experiment
    assert down.startswith("docker compose down -v")
    assert set(map(plain, shortest)) <= set(map(plain, experiment)), "README.md has other commands than docs/deploy.md"
    assert [line.split()[0] for line in own_code] == ["docker", "PUF_CLIENT_IMAGE=my-client"]
    until_idle = plain(shortest[1])
    # Three federations. Each begins with empty volumes.
    one, own, last = [*first, *password, *rest, *backup, *logs], [*own_code, until_idle], [*monitored, until_idle]
    return [*overlays, *images, *one, down, *own, down, *last]


def adapted(line: str, program: list[str], *, grafana: bool) -> str:
    """The command with this machine's compose and packages for training."""
    line = plain(line).replace("docker compose", " ".join(program))
    if line.startswith("docker build") and "client.Dockerfile" in line:
        # Without a value: from the environment, if it is there.
        line = line.replace("docker build", "docker build --build-arg TRAIN")
    if MONITORED[-1] in line and " up " in line and not grafana:
        line += WITHOUT_GRAFANA
    return line


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


def write_own_code(directory: Path) -> None:
    """Writes what the page's Dockerfile needs: itself, and the code that `puf-client init` writes."""
    (recipe,) = blocks("docs/deploy.md", "Images", "dockerfile")
    write = "cd /tmp && puf-client init > /dev/null && cat my_task.py"
    code = docker("run", "--rm", "--network", "none", "--entrypoint", "sh", "puf-client", "-c", write)
    made = directory / "my-code"
    made.mkdir()
    (made / "Dockerfile").write_text("\n".join(recipe) + "\n")
    (made / "my_task.py").write_text(code)


def run(directory: Path, program: list[str], env: dict[str, str], *, grafana: bool) -> dict[str, str]:
    """Runs the commands. Returns the outputs by command."""
    outputs = {}
    for line in commands():
        if line.startswith("docker build") and "my-client" in line:
            write_own_code(directory)
        command, started = adapted(line, program, grafana=grafana), time.monotonic()
        code, shown = typed(command, directory, env)
        check(f"{command}   ({time.monotonic() - started:.1f} s)", code == 0, f"\n{code}: {shown}")
        outputs[plain(line)] = shown
    return outputs


def main() -> int:
    program = found_compose()
    if program is None or not engine_answers():
        print("skipped: no Docker engine is available, or neither `docker compose` nor `docker-compose` is installed")
        return 0
    env = dict(os.environ) | {name: str(free_port()) for name in PORTS}
    env |= {"COMPOSE_PROJECT_NAME": PROJECT, "TERM": "dumb", "COLUMNS": "120"}
    env |= {"PROMETHEUS_IMAGE": try_monitoring.image(), "GRAFANA_PASSWORD": "trial"}
    grafana = available("monitoring", "GRAFANA_IMAGE") is not None
    if not grafana:
        say("Grafana's image is not available; the overlay is started without it")
    with tempfile.TemporaryDirectory() as scratch:
        directory = Path(scratch)
        copied(directory)
        try:
            outputs = run(directory, program, env, grafana=grafana)
        finally:
            down = [*program, *MONITORED, "-p", PROJECT, "down", "-v", "-t", "5"]
            subprocess.run(down, cwd=ROOT, env=env, capture_output=True)
            say("containers removed")
        forgotten = next(shown for command, shown in outputs.items() if "--unlearn" in command)
        check("the third replica was forgotten", "request of client-3 was applied" in forgotten, forgotten)
        password = next(shown for command, shown in outputs.items() if "dashboard/token" in command)
        check("the dashboard's password is one word", re.fullmatch(r"\S{16,}\n*", password) is not None, password)
        files = sorted(path.name for path in [*directory.glob("*.*"), *(directory / "receipts").glob("*")])
        wanted = ("model.safetensors", "monday.tar", "receipt-")
        check("model, backup and receipts are on the host", all(any(w in f for f in files) for w in wanted), files)
    print("all checks passed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
