"""A federation of real processes that are killed repeatedly and restarted each time.

It trains, one client asks to be forgotten with its command, and the others recover. Killed processes are restarted. The
final weights must be those of a federation without kills, and no acknowledged fact may be missing.
"""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

from tests.torture.kills import SETTING, TARGET, Kills

from puf_common.config.exit_codes import Exit
from puf_common.errors import PufError
from puf_common.v1 import federation_pb2 as fed
from puf_common.v1 import operator_pb2 as op
from puf_lab.federations.processes import (
    Process,
    ServerProcess,
    fleet,
    init_server,
    program,
    unlearn_command,
)
from puf_lab.spec.command_line import client_flags
from puf_lab.spec.federation import FederationSpec, client_name
from puf_server.core.state.rounds import RoundPhase
from puf_server.failpoints import SWITCH, VARIABLE
from puf_server.storage.state_store import Store

__all__ = ["Failed", "Federation"]


class Failed(Exception):
    """The federation failed. The message names the fault and the logs."""


@dataclass
class _Client:
    """The process of a client: a child of the fleet, or a separate process."""

    pid: int
    process: Process | None = None


class Federation:
    """Runs one federation to its end under a plan of kills."""

    def __init__(
        self, directory: Path, kills: Kills, plan: FederationSpec = SETTING, say: Callable[[str], None] = lambda _: None
    ):
        self.directory = directory
        self.kills = kills
        self._plan = plan
        self._strength: tuple[str, ...] = ()
        if (plan.forgetting.method, plan.forgetting.strength) == ("puf", "fixed"):
            self._strength = ("--kappa", str(plan.forgetting.kappa))
        self._say = say
        self._logs = directory / "logs"
        self._stack = ExitStack()
        self._listen = self._operator = "127.0.0.1:0"
        self._server: ServerProcess | None = None
        self._fleet: Process | None = None
        self._clients: dict[int, _Client] = {}
        self._leaving: Process | None = None
        self._started = 0
        self._log_read = 0
        self._progress = ""
        self._begun = self._idle = False
        self._frozen: set[int] = set()

    def run(self, seconds: float) -> None:
        """Runs a new federation until the ticket is completed and all processes have ended."""
        # A killed target returns before the models that it measures are deleted.
        more = ["--plan-absent-seconds", "600", "--forgetting-measure-seconds", "600"]
        init_server(self.directory / "server", self._plan, clients=self._plan.clients, more=more)
        until = time.monotonic() + seconds
        with self._stack:
            self._serve()
            self._start_fleet(set(range(self._plan.clients)))
            strike = self._next()
            while not self._supervise():
                if time.monotonic() > until:
                    raise Failed(f"not done within {seconds:g} s: {self._progress}; see {self._logs}")
                self._collect_canaries()
                if self._more() and strike():
                    self._strike()
                    strike = self._next()
                time.sleep(0.02)
            self._stop()
        if left := [*sorted(self.kills.armed), *(f"a {kind} round" for kind in self.kills.in_round)]:
            raise Failed(f"never reached: {', '.join(left)}; see {self._logs}")

    def _collect_canaries(self) -> None:
        """Keeps the updates of the client that will be forgotten: a second name for each of its files in the spool."""
        canaries = self.directory / "canaries"
        canaries.mkdir(exist_ok=True)
        for path in (self.directory / "server" / "spool").glob(f"*.{client_name(TARGET)}.*"):
            with suppress(FileExistsError, FileNotFoundError):
                (canaries / path.name).hardlink_to(path)

    def _more(self) -> bool:
        """Whether a kill is left. Few happen while clients join, so that most happen during work."""
        done = self.kills.killed
        if not self._begun:
            return done < self.kills.moments // 8
        return done < self.kills.moments - (self.kills.reserve if self._leaving is None else 0)

    def _next(self) -> Callable[[], bool]:
        """Whether it is time for the next kill: mostly soon after clients work again, sometimes before."""
        pause = self.kills.random.uniform(0.0, self.kills.seconds)
        at_work = self.kills.random.random() < 0.75
        log = self._logs / "server.log"
        serving, begin = log.stat().st_size, time.monotonic()
        woken: list[float] = [] if at_work else [begin]

        def due() -> bool:
            if not woken and log.stat().st_size > serving:
                woken.append(time.monotonic())
            return bool(woken) and time.monotonic() >= woken[0] + pause * (0.2 if at_work else 1.0)

        return due

    # -- the server ----------------------------------------------------------------------------------------------------

    def _serve(self) -> None:
        """Starts the server, again if it dies during its start."""
        while True:
            if self._server is not None:
                self._server.control.__exit__(None, None, None)
            log = self._logs / "server.log"
            self._log_read = log.stat().st_size if log.exists() else 0
            try:
                server = ServerProcess(
                    self.directory / "server",
                    log,
                    listen=self._listen,
                    operator=self._operator,
                    env={VARIABLE: self.kills.text(self._rounds_left), SWITCH: "yes"},
                )
            except PufError as error:
                code = re.search(r"ended with code (-?\d+)", error.message)
                if code is None or int(code.group(1)) != -signal.SIGKILL:
                    raise Failed(f"the server does not start: {error.message}") from None
                self._note_failpoint()
                continue
            self._server = server
            self._stack.callback(server.end)
            self._listen, self._operator = server.address, f"127.0.0.1:{server.operator_port}"
            return

    def _rounds_left(self) -> tuple[int, bool]:
        """Training rounds left to sum, and whether one of them is closed, by the log of the dead server."""
        store = Store.open(self.directory / "server")
        try:
            state = store.load()
        finally:
            store.close()
        closed = state.round is not None and state.round.phase is RoundPhase.FOLDING
        return state.planned - state.trained, closed

    def _note_failpoint(self) -> None:
        """Counts the failpoint in the last log line of the dead server."""
        text = (self._logs / "server.log").read_bytes()[self._log_read :].decode(errors="replace")
        hits = [line for line in map(_json, text.splitlines()) if line.get("event") == "failpoint"]
        if not hits or hits[-1]["action"] != "kill":
            raise Failed(f"the server died without a failpoint; see {self._logs / 'server.log'}")
        self.kills.fired(hits[-1]["name"])
        left = sum(map(len, self.kills.armed.values()))
        self._say(f"died at {hits[-1]['name']}, {left} to go; {self._progress}")

    # -- clients -------------------------------------------------------------------------------------------------------

    def _start_fleet(self, shards: set[int]) -> None:
        assert self._server is not None
        self._started += 1
        log = self._logs / f"fleet-{self._started}.log"
        absent = [i for i in range(self._plan.clients) if i not in shards]
        process = fleet(self._plan, self._server, self.directory / "clients", log, without=absent)
        self._stack.callback(_kill_group, process)
        self._fleet = process
        self._clients |= {i: _Client(0) for i in shards}

    def _start_client(self, shard: int) -> None:
        assert self._server is not None
        self._started += 1
        words = [program("puf-client"), "run", "--server", self._server.address, "--log-format", "json"]
        # A server that is killed again and again may not answer for a while.
        words += ["--patience", "600"]
        words += ["--state", str(self.directory / "clients"), *client_flags(self._plan, shard)]
        process = Process(words, self._logs / f"single-{self._started}" / f"{client_name(shard)}.log")
        self._stack.callback(_kill_group, process)
        self._clients[shard] = _Client(process.pid, process)

    def _find_children(self) -> bool:
        """Finds the process ids of the fleet's children. The fleet forks them in the order of their shards."""
        mine = sorted(i for i, c in self._clients.items() if c.process is None)
        if self._fleet is None or all(self._clients[i].pid for i in mine):
            return True
        children = Path(f"/proc/{self._fleet.pid}/task/{self._fleet.pid}/children")
        found = sorted(map(int, children.read_text().split())) if children.exists() else []
        if len(found) != len(mine):
            return False
        for shard, pid in zip(mine, found, strict=True):
            self._clients[shard].pid = pid
        return True

    # -- supervision ---------------------------------------------------------------------------------------------------

    def _supervise(self) -> bool:
        """Restarts dead processes and starts the target's request. True when its ticket is completed."""
        server = self._server
        assert server is not None
        if server.code is not None:
            if server.code != -signal.SIGKILL:
                raise Failed(f"the server ended with code {server.code}: {server.tail()}")
            self._note_failpoint()
            self._serve()
            return False
        for shard, client in list(self._clients.items()):
            code = client.process.code if client.process is not None else None
            if code == Exit.FORGOTTEN and shard == TARGET:
                del self._clients[shard]
            elif code is not None:
                raise Failed(
                    f"{client_name(shard)} ended with code {code}: {client.process.tail() if client.process else ''}"
                )
        if self._find_children():
            self._freeze()
        if self._leaving is not None:
            if self._leaving.code is None:
                if self.kills.in_round:
                    self._kill_in_round(server)
                return False
            if self._leaving.code != Exit.OK:
                raise Failed(f"the target's command ended with code {self._leaving.code}: {self._leaving.tail(12)}")
            return True
        try:
            status = server.control.status()
        except PufError:
            return False
        self._begun = self._begun or status.position.round > 0 or status.HasField("round")
        self._kill_frozen(status)
        self._progress = f"round {status.position.round} of {status.rounds_planned}, {status.waiting_for}"
        if self._idle and not (set(self.kills.in_round) == {"unlearn"} and not self._target_frozen()):
            self._leave()
        return False

    def _leave(self) -> None:
        """Runs the target's unlearn command; the same again after a kill."""
        assert self._server is not None
        self._started += 1
        flags = (*self._strength, "--log-format", "json")
        words = unlearn_command(self._plan, self._server, self.directory / "clients", TARGET, *flags)
        self._leaving = Process(words, self._logs / f"unlearn-{self._started}" / f"{client_name(TARGET)}.log")
        self._stack.callback(_kill_group, self._leaving)

    def _stop(self) -> None:
        """Stops the federation. A server with an armed failpoint may die once more."""
        assert self._server is not None
        try:
            self._server.control.stop()
            self._server.wait(60)
        except PufError as error:
            raise Failed(f"the server does not stop: {error.message}") from None
        if self._server.code != Exit.OK:
            raise Failed(f"the server ended with code {self._server.code} after stop: {self._server.tail()}")

    # -- killing -------------------------------------------------------------------------------------------------------

    def _strike(self) -> None:
        assert self._server is not None
        if not self._find_children():
            return
        victim = self.kills.victim(self._leaving is not None)
        uploading = any((self.directory / "server" / "spool").glob("*.part"))
        if victim.startswith("paused"):
            shard = self.kills.random.randrange(self._plan.clients)
            pid = (
                self._server.pid
                if victim == "paused server"
                else self._clients[shard].pid
                if shard in self._clients
                else 0
            )
            if not self._pause(pid):
                return
        elif victim == "server":
            self._server.send(signal.SIGKILL)
            self._server.wait(30)
            self._serve()
        elif victim == "fleet":
            self._kill_fleet()
        elif victim == "unlearn command":
            if self._leaving is None or self._leaving.code is not None:
                return
            _kill_group(self._leaving)
            self._leave()
        else:
            shard = TARGET if victim == "target" else self.kills.random.randrange(self._plan.clients)
            if not self._kill_client(shard):
                return
        self.kills.done[victim] += 1
        self.kills.in_upload += uploading and not victim.startswith("paused")
        self._say(f"{self.kills.killed} kills, the last of the {victim}; {self._progress}")

    def _freeze(self) -> None:
        """Stops a client that is to be killed in a round, so that its assignment stays open until then."""
        for kind, shard in self.kills.in_round.items():
            pid = self._clients[shard].pid
            log = self._logs / "fleet-1" / f"{client_name(shard)}.log"
            joined = log.exists() and '"joined"' in log.read_text(errors="replace")
            if pid not in self._frozen and (joined if kind == "train" else self._idle):
                os.kill(pid, signal.SIGSTOP)
                self._frozen.add(pid)

    def _target_frozen(self) -> bool:
        return self._clients[TARGET].pid in self._frozen

    def _kill_in_round(self, server: ServerProcess) -> None:
        with suppress(PufError):
            self._kill_frozen(server.control.status())

    def _kill_frozen(self, status: op.StatusReply) -> None:
        self._idle = status.rounds_trained >= status.rounds_planned and status.position.phase == fed.PHASE_IDLE
        kind = status.round.kind if status.HasField("round") else ""
        shard = self.kills.in_round.get(kind)
        if shard is None or list(status.round.missing) != [client_name(shard)]:
            return
        del self.kills.in_round[kind]
        assert self._kill_client(shard)
        self.kills.done[f"client in a {kind} round"] += 1

    def _pause(self, pid: int) -> bool:
        """Stops a process for a moment, so that its calls and those of its callers take long."""
        if not pid or not _alive(pid):
            return False
        os.kill(pid, signal.SIGSTOP)
        time.sleep(self.kills.random.uniform(0.1, 2.0))
        os.kill(pid, signal.SIGCONT)
        return True

    def _kill_client(self, shard: int) -> bool:
        client = self._clients.get(shard)
        if client is None or not _alive(client.pid):
            return False
        os.kill(client.pid, signal.SIGKILL)
        if client.process is not None:
            client.process.wait(30)
        self._start_client(shard)
        return True

    def _kill_fleet(self) -> None:
        """Kills all processes of the fleet at once, so that no client leaves with a call."""
        if self._fleet is None:
            return
        shards = {i for i, c in self._clients.items() if c.process is None and (_alive(c.pid) or i != TARGET)}
        _kill_group(self._fleet)
        self._clients = {i: c for i, c in self._clients.items() if c.process is not None}
        self._fleet = None
        if shards:
            self._start_fleet(shards)


def _alive(pid: int) -> bool:
    """Whether a process is alive. A zombie is not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (OSError, IndexError):
        return False


def _kill_group(process: Process) -> None:
    if process.code is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(30)


def _json(line: str) -> dict[str, str]:
    try:
        found = json.loads(line)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
