"""Flower's deployment engine: a SuperLink with TLS that knows the keys of its SuperNodes, and runs of the app of the page."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import signal
import subprocess
from base64 import b64decode, b64encode
from contextlib import ExitStack
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from integrations.tests.ports import free_port, listens
from tests.integrations import task
from tests.pki import Pki

from puf_lab.federations.processes import Process, wait_until

ROOT = Path(__file__).parents[2]
PROGRAMS = ROOT / ".venv-flower" / "bin"
ENVIRONMENT = {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0", "PYTHONPATH": str(ROOT)}
SECONDS = 1200.0
NODES = 3

PROJECT = """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"
[project]
name = "pufapp"
version = "1.0.0"
license = "Apache-2.0"
dependencies = ["flwr"]
[tool.hatch.build.targets.wheel]
packages = ["."]
[tool.flwr.app]
publisher = "tests"
[tool.flwr.app.components]
serverapp = "pufapp.server_app:app"
clientapp = "pufapp.client_app:app"
[tool.flwr.app.config]
rounds = 1
forget = ""
puf-state = ""
out = ""
"""


def page_lines() -> dict[str, str]:
    """The two files of the page, by name."""
    page = (ROOT / "docs" / "flower.md").read_text()
    return dict(re.findall(r"`(\w+_app\.py)`:\n\n```python\n(.*?)```", page, re.DOTALL))


class Deployment:
    """One federation in a directory. Keys of nodes outlive the processes; ids of nodes do not."""

    def __init__(self, directory: Path, stack: ExitStack, files: dict[str, str]) -> None:
        self.directory, self._stack = directory, stack
        self.state, self.out = directory / "puf", directory / "model.npz"
        self._app(files)
        self._pki = Pki(directory / "certs")
        self.keys = [self._key(number) for number in range(NODES)]
        self._running: list[Process] = []
        self._starts = 0

    def _app(self, files: dict[str, str]) -> None:
        package = self.directory / "app" / "pufapp"
        package.mkdir(parents=True)
        (package.parent / "pyproject.toml").write_text(PROJECT)
        for name, text in {"__init__.py": "", **files}.items():
            (package / name).write_text(text)
        shutil.copy(Path(task.__file__), package / "task.py")

    def _key(self, number: int) -> Path:
        """The public half of a new key, as ssh-keygen writes it. The private half is beside it."""
        key, path = ec.generate_private_key(ec.SECP384R1()), self.directory / f"key-{number}"
        path.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
        public = path.with_suffix(".pub")
        public.write_bytes(key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH))
        return public

    def fingerprint(self, number: int) -> str:
        """What `ssh-keygen -l` shows for the key of a node."""
        digest = hashlib.sha256(b64decode(self.keys[number].read_text().split()[1])).digest()
        return f"SHA256:{b64encode(digest).decode().rstrip('=')}"

    def start(self, node_config: dict[int, str] | None = None) -> None:
        """Starts a SuperLink without a memory, and the nodes with their old keys."""
        self._starts += 1
        port, *ports = (free_port() for _ in range(NODES + 1))
        home = self.directory / f"home-{self._starts}"
        home.mkdir()
        connection = f'address = "127.0.0.1:{port}"\nroot-certificates = "{self._pki.ca}"\n'
        (home / "config.toml").write_text(f'[superlink]\ndefault = "local"\n[superlink.local]\n{connection}')
        self._env = ENVIRONMENT | {"FLWR_HOME": str(home), "PATH": f"{PROGRAMS}:{os.environ['PATH']}"}
        tls = self._pki.server
        files = [
            "--ssl-certfile",
            str(tls.certificate),
            "--ssl-keyfile",
            str(tls.key),
            "--ssl-ca-certfile",
            str(self._pki.ca),
        ]
        flags = ["--enable-supernode-auth", "--disable-runtime-dependency-installation", "--port", str(port)]
        link = self._process("link", "flower-superlink", *files, *flags)
        wait_until(lambda: listens(port), 120, link)
        for number, (key, own) in enumerate(zip(self.keys, ports, strict=True)):
            self._flwr("supernode", "register", str(key), "local")
            config = f"partition-id={number} num-partitions={NODES} {(node_config or {}).get(number, '')}"
            flags = ["--root-certificates", str(self._pki.ca), "--superlink", f"127.0.0.1:{port}", "--port", str(own)]
            flags += ["--auth-supernode-private-key", str(key.with_suffix("")), "--node-config", config.strip()]
            self._process(f"node-{number}", "flower-supernode", *flags)

    def run(self, rounds: int, forget: str = "") -> None:
        """Runs the app to its end. The model is then in `out`."""
        before = self.out.stat().st_mtime_ns if self.out.exists() else 0
        config = f"rounds={rounds} forget='{forget}' puf-state='{self.state}' out='{self.out}'"
        app = str(self.directory / "app")
        run = self._process("run", "flwr", "run", app, "local", "--stream", "--run-config", config)
        assert run.wait(SECONDS) == 0, run.tail(30)
        self._running.remove(run)
        assert self.out.stat().st_mtime_ns > before, run.tail(30)

    def kill(self) -> None:
        """Kills the SuperLink, its apps and the nodes without a warning."""
        for process in self._running:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(60)
        self._running.clear()

    def _process(self, name: str, program: str, *words: str) -> Process:
        log = self.directory / "logs" / f"{self._starts}-{name}.log"
        command = [str(PROGRAMS / program), *words]
        started = self._stack.enter_context(Process(command, log, self.directory, self._env))
        self._running.append(started)
        return started

    def _flwr(self, *words: str) -> None:
        command = [str(PROGRAMS / "flwr"), *words]
        done = subprocess.run(command, env=os.environ | self._env, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stdout + done.stderr
