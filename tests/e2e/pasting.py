"""Runs the commands of a page one after the other, as a reader would type them."""

from __future__ import annotations

import os
import re
import shlex
import signal
import socket
import subprocess
from contextlib import ExitStack, suppress
from pathlib import Path

from tests.e2e.federation import SECONDS, Finished, command, environment

from puf_common.v1 import federation_pb2 as fed
from puf_lab.federations.processes import Process, program, wait_until
from puf_server.cli.operator_client import OperatorClient

__all__ = ["Terminal", "blocks", "commands"]

OURS = ("puf-server", "puf-client", "puf-lab", "python")
# Commands that are not ours.
SHELL = ("echo ", "cp ", "mkdir ", "for ", "kubectl ")
# Commands that a reader leaves running in a separate terminal.
LASTING = ("puf-server serve", "puf-server dashboard", "puf-client run", "python own_loop.py", "node client.mjs run")


def blocks(text: str) -> list[str]:
    return re.findall(r"```sh\n(.*?)```", text, re.DOTALL)


def commands(text: str) -> list[str]:
    return [line for block in blocks(text) for line in block.splitlines() if line]


class Terminal:
    """A reader's terminal with its own ports and its own home directory. `programs` is the environment that it uses."""

    def __init__(
        self, directory: Path, stack: ExitStack, *, programs: Path | None = None, seconds: float = SECONDS
    ) -> None:
        self.directory = directory
        self._stack, self._seconds = stack, seconds
        self._programs = Path(program("python")).parent if programs is None else programs
        self._ports = [_free_port(), _free_port()]
        server, operator = (f"127.0.0.1:{port}" for port in self._ports)
        self.env = environment(
            directory / "home",
            PUF_LISTEN=server,
            PUF_SERVER=server,
            PUF_OPERATOR=operator,
            PUF_WEB="127.0.0.1:0",
            PUF_LOG_FORMAT="json",
        )
        self.control = OperatorClient(operator)
        self.running: dict[str, Process] = {}

    def paste(self, line: str) -> Finished | None:
        """The result of one command; None for one that is left running."""
        line = line.partition("#")[0].strip()
        if line.endswith("&") or line.startswith(LASTING):
            words = shlex.split(line.removesuffix("&"))
            if words[0] == "python":
                # The script does not read PUF_SERVER.
                words += ["--server", self.env["PUF_SERVER"]]
            name = re.sub(r"\W+", "-", " ".join(words[:4]))
            env = [f"{key}={value}" for key, value in self.env.items()]
            process = Process(["/usr/bin/env", *env, *self._found(words)], self._log(name), self.directory)
            self.running[line] = self._stack.enter_context(process)
            return None
        if line.startswith(SHELL):
            subprocess.run(line, shell=True, check=True, cwd=self.directory, timeout=self._seconds, env=self._shell())
            return None
        return command(self._found(shlex.split(line)), env=self.env, cwd=self.directory, seconds=self._seconds)

    def paste_block(self, block: str) -> Finished:
        """The result of a whole block in one shell, which ends at the first command that fails. Nothing is left running."""
        out, err = self._log("block-out"), self._log("block-err")
        out.parent.mkdir(exist_ok=True)
        with out.open("w") as shown, err.open("w") as errors:
            shell = subprocess.Popen(
                ["bash", "-eu", "-c", block],
                stdin=subprocess.DEVNULL,
                stdout=shown,
                stderr=errors,
                cwd=self.directory,
                env=self._shell(),
                start_new_session=True,
            )
            try:
                code = shell.wait(self._seconds)
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(shell.pid, signal.SIGKILL)
        return Finished(code, out.read_text(), err.read_text())

    def _shell(self) -> dict[str, str]:
        """The environment of a shell, which finds our programs first."""
        return self.env | {"PATH": f"{self._programs}:{self.env['PATH']}"}

    def _found(self, words: list[str]) -> list[str]:
        """The command with the path of its program, if that is one of ours."""
        return [str(self._programs / words[0]), *words[1:]] if words[0] in OURS else words

    def wait_for(self, state: fed.Phase) -> None:
        wait_until(lambda: self.control.status().position.phase == state, self._seconds, *self.running.values())

    def _log(self, name: str) -> Path:
        return self.directory / "logs" / f"{name}.log"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
