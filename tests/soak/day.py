"""A day of a federation with a thousand light clients, on a clock that the test moves.

The engine, the storage, the token list, the authority, backup and restore are the shipped ones, in this process and
without a network. Every few hours the federation moves to a directory that was restored from a backup.
"""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import psutil

from puf_common.errors import Forgotten
from puf_common.v1 import federation_pb2 as fed
from puf_common.v1 import tickets_pb2 as tk
from puf_server.admission.tokens import Tokens
from puf_server.core.state.tickets import TicketState
from puf_server.maintenance.backup import backup
from puf_server.maintenance.restore import restore
from puf_server.pki.authority import Authority
from tests.running import make_state, tiny_config
from tests.server.local import Clock, Local

__all__ = ["Day"]

_STEP = 300.0
_ROUND_STEPS = 3
_HOUR = 12
_UPDATES = 20


class Day:
    def __init__(self, root: Path, clients: int, seed: int) -> None:
        self.root, self._random = root, Random(seed)
        self._names = [f"client-{i}" for i in range(clients)]
        self._steps = 0
        self.clock = Clock()
        self.counts: Counter[str] = Counter()
        self.samples: list[dict[str, int]] = []
        config = tiny_config(
            plan={
                "rounds": 1_000_000,
                "min_clients": 2,
                "participation": min(1.0, _UPDATES / clients),
                "start_clients": clients,
                "absent_seconds": 3600.0,
                "keep_models": 3,
            },
            forgetting={"blind_recovery_rounds": 1, "max_recovery_rounds": 1},
            limits={"writes_per_minute": 1e9, "forget_share": 1.0, "tickets_per_hour": 1_000_000},
        )
        self._local = Local(make_state(root / "state-0", config), self.clock)
        self._authority = Authority.create(root / "pki", "soak")
        self._tokens = Tokens(root / "state-0", self.clock)
        self._secrets: dict[str, str] = {}
        for name in self._names:
            self._local.join(name)

    def run(self, hours: int, say: Callable[[str], None] = lambda _: None) -> None:
        for hour in range(hours):
            for _ in range(_HOUR):
                self._step()
            self._rotate()
            if hour % 2 == 1:
                self._forget()
            if hour % 4 == 3:
                self._move()
            self.samples.append(self._sample())
            say(f"hour {hour + 1}: {dict(self.counts)} {self.samples[-1]}")

    def close(self) -> None:
        self._local.engine.close()

    @property
    def unfinished(self) -> int:
        """Tickets that are not completed. The last one may still be under way."""
        tickets = self._local.engine.state.tickets.values()
        return sum(t.state is not TicketState.COMPLETED for t in tickets)

    def _step(self) -> None:
        """Five minutes: heartbeats of all clients, and the work of an open round now and then."""
        self.clock.now += _STEP
        self._steps += 1
        handlers, state = self._local.handlers, self._local.engine.state
        for name in list(self._names):
            try:
                handlers.heartbeat(name, fed.HeartbeatRequest(session=state.members[name].session))
            except Forgotten:
                self._names.remove(name)
                self.counts["forgotten"] += 1
        self.counts["heartbeats"] += len(self._names)
        if self._steps % _ROUND_STEPS == 0:
            for name in list(self._names):
                self._work(name)
            self._local.engine.fold_ready()
        self._local.engine.tick()

    def _work(self, name: str) -> None:
        handlers, engine = self._local.handlers, self._local.engine
        reply = handlers.work(name, engine.state.members[name].session)
        if reply is None:
            return
        if reply.HasField("train"):
            self._local.submit(name, self._random.uniform(-0.01, 0.01))
            self.counts["updates"] += 1
        elif reply.HasField("evaluate"):
            sums = tk.EvaluationSums(samples=5, loss_sum=1.0, score_sum=4.0)
            work = reply.evaluate
            handlers.report_evaluation(
                name, fed.ReportEvaluationRequest(evaluation=work.evaluation, version=work.version, holdout=sums)
            )

    def _rotate(self) -> None:
        """New tokens and new certificates for some clients. The old token stops working, the new one works."""
        for name in self._random.sample(self._names, 10):
            old, new = self._secrets.get(name), self._tokens.add(name, days=1.0, replace=name in self._secrets)
            assert self._tokens.holder(new) == name
            assert old != new
            self._secrets[name] = new
            self._authority.client(name, days=1.0, renew=old is not None)
            self.counts["tokens"] += 1
            self.counts["certificates"] += 1

    def _forget(self) -> None:
        self._local.forget(self._random.choice(self._names))
        self.counts["requests"] += 1

    def _move(self) -> None:
        """Makes a backup, restores it, and continues in the restored directory."""
        engine = self._local.engine
        directory, number = engine.store.directory, self.counts["backups"] + 1
        file, target = self.root / f"{number}.tar", self.root / f"state-{number}"
        backup(directory, file, self.clock.now)
        version = engine.state.version
        engine.close()
        restore(file, target, now=self.clock.now, waived=True)
        file.unlink()
        self._local = Local(target, self.clock)
        shutil.copy(directory / "tokens.json", target / "tokens.json") if (directory / "tokens.json").exists() else None
        self._tokens = Tokens(target, self.clock)
        shutil.rmtree(directory)
        assert self._local.engine.state.version == version
        for name in list(self._names):
            try:
                self._local.join(name)
            except Forgotten:
                self._names.remove(name)
                self.counts["forgotten"] += 1
        self.counts["backups"] = self.counts["restores"] = number

    def _sample(self) -> dict[str, int]:
        process: Any = psutil.Process()
        state = self._local.engine.store.directory
        return {
            "rss_kb": process.memory_info().rss // 1024,
            "files": len(os.listdir("/proc/self/fd")),
            "state_kb": sum(p.stat().st_size for p in state.rglob("*") if p.is_file()) // 1024,
            "round": self._local.engine.state.number,
        }
