"""Real server and client processes on loopback, started, watched and always ended."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from types import TracebackType

from puf_common.errors import PufError, Unavailable
from puf_lab.experiments.setting import DISTILLER, Setting, client_name
from puf_server.cli.operator_client import OperatorClient

__all__ = ["Process", "ServerProcess", "data_flags", "distiller", "fleet", "init_server", "wait_until"]

_START_SECONDS = 60.0
# On Linux a child asks to be ended with its parent, then becomes the program: whoever kills the experiment kills its
# processes. Not a preexec_fn, which would run between fork and exec of a process whose gRPC threads are gone.
_DIE_WITH_PARENT = (
    "import ctypes, os, sys; "
    "sys.platform == 'linux' and ctypes.CDLL(None).prctl(1, 15); "
    "os.execv(sys.argv[1], sys.argv[1:])"
)


def _command(words: Sequence[str]) -> list[str]:
    return [sys.executable, "-I", "-S", "-c", _DIE_WITH_PARENT, *words]


def program(name: str) -> str:
    """A console script of this installation."""
    return str(Path(sys.executable).with_name(name))


class Process:
    """A child process with a log file; leaving the context ends it."""

    def __init__(
        self, command: Sequence[str], log: Path, cwd: Path | None = None, env: Mapping[str, str] | None = None
    ) -> None:
        log.parent.mkdir(parents=True, exist_ok=True)
        self.log = log
        with log.open("ab") as out:
            # A session of its own: the keyboard's interrupt reaches the experiment alone, which then ends its children.
            self._child = subprocess.Popen(  # noqa: S603
                _command(command),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                cwd=cwd,
                env=None if env is None else {**os.environ, **env},
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self._child.pid

    @property
    def code(self) -> int | None:
        return self._child.poll()

    def send(self, number: int) -> None:
        os.kill(self.pid, number)

    def wait(self, seconds: float) -> int:
        """The exit code, once it has ended by itself."""
        try:
            return self._child.wait(seconds)
        except subprocess.TimeoutExpired:
            raise PufError(f"{self.log.stem} did not end within {seconds:g} s; see {self.log}") from None

    def end(self, seconds: float = 15.0) -> int:
        """Asks it to end, then makes it."""
        if self._child.poll() is None:
            self._child.terminate()
            try:
                self._child.wait(seconds)
            except subprocess.TimeoutExpired:
                self._child.kill()
        return self._child.wait()

    def __enter__(self) -> Process:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    def tail(self, lines: int = 5) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])


class ServerProcess(Process):
    """`puf-server serve` on free ports; ready to be spoken to when constructed."""

    def __init__(
        self,
        state: Path,
        log: Path,
        *,
        listen: str = "127.0.0.1:0",
        operator: str = "127.0.0.1:0",
        security: Sequence[str] = ("--insecure",),
        env: Mapping[str, str] | None = None,
    ) -> None:
        announce = state.parent / f"{state.name}.ports"
        announce.unlink(missing_ok=True)
        flags = ["--state", str(state), *security, "--listen", listen, "--operator", operator]
        flags += ["--announce", str(announce), "--log-format", "json"]
        super().__init__([program("puf-server"), "serve", *flags], log, env=env)
        wait_until(lambda: announce.exists() and announce.read_text().endswith("\n"), _START_SECONDS, self)
        self.port, self.operator_port = map(int, announce.read_text().split())
        self.address = f"127.0.0.1:{self.port}"
        self.control = OperatorClient(f"127.0.0.1:{self.operator_port}")


def wait_until(done: Callable[[], bool], seconds: float, *processes: Process, poll: float = 0.05) -> None:
    """Waits for something to become true; fails early, with the end of its log, when a process it depends on ends."""
    until = time.monotonic() + seconds
    while True:
        try:
            if done():
                return
        except Unavailable:
            if all(p.code is None for p in processes) and time.monotonic() < until:
                time.sleep(poll)
                continue
            raise
        for process in processes:
            if process.code is not None:
                raise PufError(f"{process.log.stem} ended with code {process.code}:\n{process.tail()}")
        if time.monotonic() > until:
            raise PufError(f"not within {seconds:g} s; logs are in {processes[0].log.parent if processes else '.'}")
        time.sleep(poll)


def init_server(state: Path, setting: Setting, *, clients: int, more: Sequence[str] = ()) -> None:
    """`puf-server init` for a setting."""
    recipe, forgetting = setting.recipe, setting.forgetting
    flags = [
        *("--state", str(state), "--title", setting.title, "--model", setting.model, "--task", setting.task),
        *(word for key, value in setting.model_options.items() for word in ("--model-options", f"{key}={value}")),
        *("--plan-rounds", str(setting.rounds), "--plan-start-clients", str(clients)),
        *("--plan-keep-models", "0", "--plan-evaluate-every", "0"),
        *("--plan-heartbeat-seconds", "1", "--plan-absent-seconds", "6"),
        *(word for key, value in recipe.model_dump().items() for word in _words("recipe", key, value)),
        *("--forgetting-max-recovery-rounds", str(forgetting.max_recovery_rounds)),
        *("--forgetting-method", forgetting.method, "--forgetting-fallback", forgetting.fallback),
        *(w for k, v in forgetting.method_options.items() for w in ("--forgetting-method-options", f"{k}={v}")),
        *("--forgetting-collapse-ratio", "0", "--limits-forget-share", "1"),
        *more,
    ]
    done = subprocess.run(  # noqa: S603
        _command([program("puf-server"), "init", *flags]), capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise PufError(f"puf-server init failed: {done.stderr.strip() or done.stdout.strip()}")


def data_flags(setting: Setting) -> list[str]:
    """What a client has to be told about its data."""
    return [
        *("--data", setting.data, "--partition", setting.partition, "--data-seed", str(setting.data_seed)),
        *(word for key, value in setting.data_options.items() for word in ("--data-option", f"{key}={value}")),
        *(("--data-dir", str(setting.data_dir)) if setting.data_dir else ()),
        *("--device", "cpu"),
    ]


def fleet(
    setting: Setting, server: ServerProcess, clients: Path, log: Path, *, without: Collection[int] = ()
) -> Process:
    """All clients of a setting, each a process of its own."""
    return Process(
        [program("puf-client"), "fleet", "--clients", str(setting.shards), "--server", server.address]
        + [
            "--state",
            str(clients),
            *data_flags(setting),
            "--log-dir",
            str(log.parent / log.stem),
            "--log-format",
            "json",
        ]
        + [word for shard in (*without, *range(setting.clients, setting.shards)) for word in ("--except", str(shard))],
        log,
    )


def distiller(setting: Setting, server: ServerProcess, clients: Path, log: Path) -> Process:
    """Who brings the public shard."""
    return Process(
        [
            *(program("puf-client"), "run", "--distiller", "--name", DISTILLER, "--server", server.address),
            *("--shard", f"{setting.clients}/{setting.shards}", "--state", str(clients), *data_flags(setting)),
            *("--log-format", "json"),
        ],
        log,
    )


def unlearn_command(setting: Setting, server: ServerProcess, clients: Path, shard: int, *more: str) -> list[str]:
    """What the leaving client types."""
    return [
        *(program("puf-client"), "--unlearn", "--yes", "--server", server.address, "--name", client_name(shard)),
        *("--shard", f"{shard}/{setting.shards}", "--state", str(clients), *data_flags(setting)),
        *("--receipt-dir", str(clients.parent), *more),
    ]


def _words(group: str, name: str, value: object) -> list[str]:
    """A setting as a command line has it; what is true or false is a flag without a value."""
    flag = f"{group}-{name.replace('_', '-')}"
    if isinstance(value, bool):
        return [f"--{flag}" if value else f"--no-{flag}"]
    return [f"--{flag}", str(value)]
