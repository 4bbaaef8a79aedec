"""Runs the systemd units: executes the section of docs/deploy-hosts.md in a container whose first process is systemd.

    python deploy/try_systemd.py [--keep]

Server and clients are killed and restarted. One client is forgotten and is not restarted. The server is stopped in order,
and the machine is rebooted. TRAIN in the environment lists the packages for training, as for the client's image. Needs a
Docker engine; without one it prints a line and ends with 0.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import time
from typing import Any

from trials import ROOT, check, docker, engine_answers, say, wait_for

IMAGE = "puf-trial-systemd"
# The installation of the section "Many machines", with a checkout. If the engine mounts the control groups read-only,
# they are remounted before systemd starts.
DOCKERFILE = """
FROM python:3.11-slim
RUN apt-get update && apt-get install -y --no-install-recommends systemd systemd-sysv dbus && rm -rf /var/lib/apt/lists/*
ARG TRAIN
COPY deploy/docker/wheels /wheels
RUN python3 -m venv /opt/puf && /opt/puf/bin/pip install --no-cache-dir --find-links /wheels ${TRAIN}
COPY . /src/puf
WORKDIR /src/puf
RUN /opt/puf/bin/pip install --no-cache-dir .
STOPSIGNAL SIGRTMIN+3
CMD ["sh", "-c", "mount -o remount,rw /sys/fs/cgroup; exec /sbin/init"]
"""
SERVER, TARGET, OTHER = "puf-server", "puf-client@clinic-7", "puf-client@clinic-8"
STATE = "/var/lib/puf-server/state"


class Machine:
    """A booted container without external network, in which fed.example.org is the container itself."""

    def __init__(self, name: str) -> None:
        self.name = name
        rights = ["--cap-add", "SYS_ADMIN", "--security-opt", "seccomp=unconfined", "--cgroupns=private"]
        memory = ["--tmpfs", "/run", "--tmpfs", "/run/lock", "--tmpfs", "/tmp:exec"]  # noqa: S108
        itself = ["--network", "none", "--add-host", "fed.example.org:127.0.0.1", "-e", "container=docker"]
        docker("run", "-d", "--name", name, *rights, *memory, *itself, IMAGE)
        self.booted()

    def booted(self) -> None:
        wait_for("systemd", lambda: self.try_to("systemctl is-system-running")[1].strip() in ("running", "degraded"))

    def try_to(self, line: str) -> tuple[int, str]:
        words = ["docker", "exec", "-e", "COLUMNS=120", self.name, "sh", "-ec", line]
        done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        return done.returncode, done.stdout

    def do(self, line: str) -> str:
        code, shown = self.try_to(line)
        if code:
            raise SystemExit(f"failed ({code}): {line}\n{shown}")
        return shown

    def unit(self, name: str) -> dict[str, str]:
        wanted = "ActiveState,SubState,Result,ExecMainStatus,NRestarts,MainPID"
        return dict(line.split("=", 1) for line in self.do(f"systemctl show {name} -p {wanted}").splitlines())

    def status(self) -> dict[str, Any]:
        """The server's status; empty while it does not answer."""
        code, shown = self.try_to(f"/opt/puf/bin/puf-server status --json --state {STATE}")
        return {} if code else json.loads(shown)

    def until_idle(self) -> None:
        self.do(f"/opt/puf/bin/puf-server status --until-idle --state {STATE}")

    def alive(self) -> int:
        return int(self.status().get("clients_alive", 0))

    def kill_and_see(self, unit: str) -> None:
        before = self.unit(unit)
        self.do(f"systemctl kill -s KILL {unit}")
        started = time.monotonic()

        def again() -> bool:
            now = self.unit(unit)
            return now["ActiveState"] == "active" and now["MainPID"] != before["MainPID"]

        wait_for(f"{unit} again", again)
        check(f"{unit} is restarted after a kill", self.unit(unit)["NRestarts"] == "1", self.unit(unit))
        say(f"after {time.monotonic() - started:.1f} s")


def section() -> list[str]:
    """The command blocks of the section on systemd: both hosts, the server, a client, and the request to be forgotten."""
    page = (ROOT / "docs" / "deploy-hosts.md").read_text()
    found = re.search(r"^## systemd\n(.*?)(?=^## )", page, re.DOTALL | re.MULTILINE)
    assert found is not None
    blocks = re.findall(r"```sh\n(.*?)```", found[1], re.DOTALL)
    assert len(blocks) == 4
    return blocks


def prepare(machine: Machine) -> None:
    """Makes what the section needs: certificates, a key for each client, an initial model."""
    docker("cp", str(ROOT / "deploy" / "systemd"), f"{machine.name}:/src/puf/deploy/")
    machine.do(
        "export PATH=/opt/puf/bin:$PATH\n"
        "puf-client model --out w0.safetensors\n"
        "puf-server certs init --dir certs\n"
        "puf-server certs server --dir certs --name fed.example.org --name 127.0.0.1\n"
        "for i in 7 8 9; do\n"
        "  puf-client enroll --name clinic-$i --dir site\n"
        "  puf-server certs sign site/clinic-$i.csr --dir certs --name clinic-$i\n"
        "done\n"
        "cp certs/ca.crt certs/clients/*.crt site/\n"
    )


def experiment(machine: Machine) -> None:
    prepare(machine)
    everywhere, server, client, leave = section()
    machine.do(everywhere)
    say(machine.do(server).strip().replace("\n", "\n      "))
    check("the server serves", machine.unit(SERVER)["ActiveState"] == "active", machine.unit(SERVER))
    machine.do(client)
    for i in (8, 9):
        machine.do(
            f"install -m 0644 site/clinic-{i}.crt /etc/puf/tls/\n"
            f"install -m 0600 -o puf-client site/clinic-{i}.key /etc/puf/tls/\n"
            f"echo PUF_SHARD={i - 7}/3 > /etc/puf/client-clinic-{i}.env\n"
            f"systemctl enable --now puf-client@clinic-{i}\n"
        )
    wait_for("some rounds", lambda: int(machine.status().get("rounds_trained", 0)) >= 3)
    machine.kill_and_see(SERVER)
    machine.until_idle()
    trained = machine.status()
    check("all rounds were trained", trained["rounds_trained"] == trained["rounds_planned"], trained)
    machine.kill_and_see(OTHER)
    wait_for("three clients", lambda: machine.alive() == 3)

    shown = machine.do(leave)
    check("clinic-7 was forgotten by its own command", "request of clinic-7 was applied" in shown, shown)
    say("\n      ".join(line for line in shown.splitlines() if not line.startswith("{")))
    forgotten = {"ActiveState": "inactive", "SubState": "dead", "Result": "success", "ExecMainStatus": "10"}
    forgotten |= {"NRestarts": "0", "MainPID": "0"}
    wait_for("its unit's end", lambda: machine.unit(TARGET)["ActiveState"] != "active")
    check(
        "its unit ended with exit code 10, counts as successful and is not restarted", machine.unit(TARGET) == forgotten
    )
    receipts = machine.do("ls -l /var/lib/puf-client/receipt-*.json")
    check("its receipt exists", " puf-client puf-client " in receipts, receipts)

    machine.do(f"systemctl stop {SERVER}")
    stopped = machine.unit(SERVER)
    check("the server stops in order", (stopped["Result"], stopped["ExecMainStatus"]) == ("success", "0"), stopped)
    check(
        "the clients wait for the server", all(machine.unit(f"puf-client@clinic-{i}")["MainPID"] != "0" for i in (8, 9))
    )
    machine.do(f"systemctl start {SERVER}")
    wait_for("both", lambda: machine.alive() == 2)
    check("the clients use the restarted server", holds=True)
    lines = machine.do("journalctl -q -o cat -t puf-server").splitlines()
    odd = [line for line in lines if not line.startswith("{")]
    check(f"the server's log has {len(lines)} lines of JSON", bool(lines) and not odd, odd)

    docker("restart", "-t", "60", machine.name)
    machine.booted()
    wait_for("both after a reboot", lambda: machine.alive() == 2)
    wait_for("the end of the forgotten client", lambda: machine.unit(TARGET)["MainPID"] == "0")
    check(
        "after a reboot all clients run except the forgotten one",
        machine.unit(TARGET) == forgotten,
        machine.unit(TARGET),
    )


def build() -> None:
    train = os.environ.get("TRAIN", "torch torchvision timm scikit-learn safetensors")
    docker("build", "-t", IMAGE, "--build-arg", f"TRAIN={train}", "-f", "-", str(ROOT), text=DOCKERFILE)


def main() -> int:
    parser = argparse.ArgumentParser(description="Run the systemd units and check the result.")
    parser.add_argument("--keep", action="store_true", help="leave the container running")
    arguments = parser.parse_args()
    if not engine_answers():
        print("skipped: no Docker engine is available")
        return 0
    started = time.monotonic()
    build()
    say(f"image built in {time.monotonic() - started:.1f} s")
    name = f"puf-trial-{os.getpid()}"
    try:
        machine = Machine(name)
        say(machine.do("systemctl --version | head -n 1").strip())
        experiment(machine)
    finally:
        if not arguments.keep:
            subprocess.run(["docker", "rm", "-f", "-v", name], capture_output=True)  # noqa: S607
            say("container removed")
    print("all checks passed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
