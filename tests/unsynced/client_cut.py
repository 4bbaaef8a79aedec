"""Kills a process that writes a client's state directory, and loses what it did not sync."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from random import Random

from tests.unsynced.client_process import missing
from tests.unsynced.guarantees import Guarantee, guarantees
from tests.unsynced.replay import Layer

__all__ = ["ClientCut"]


class ClientCut:
    def __init__(self, directory: Path, library: Path, seed: int, without: str = "") -> None:
        self.root = directory / "client"
        self.root.mkdir()
        self.layer = Layer(self.root, library)
        self._random = Random(seed)
        self._without = without
        self.facts: list[tuple[str, int]] = []
        self.lost: Counter[str] = Counter()
        self.kills = 0

    def run(self) -> None:
        """Ends the process by SIGKILL after a random number of changes until it wrote everything."""
        code = -signal.SIGKILL
        while code == -signal.SIGKILL:
            code = self._once()
            if code == -signal.SIGKILL:
                self.kills += 1
                self.lost += self.layer.crash(self._random)
            with guarantees(Guarantee.OPENS):
                gone = missing(self.root, self.facts)
            with guarantees(Guarantee.ACKNOWLEDGED):
                assert not gone, gone
        if code:
            raise RuntimeError(f"the process ended with code {code}")

    def _once(self) -> int:
        begin = max((number for kind, number in self.facts if kind == "receipt"), default=0)
        changes = str(self._random.randint(1, 150))
        env = os.environ | self.layer.environment | {"UNSYNCED_WITHOUT": self._without, "UNSYNCED_CHANGES": changes}
        words = [sys.executable, "-m", "tests.unsynced.client_process", str(self.root), str(begin)]
        done = subprocess.run(words, stdout=subprocess.PIPE, text=True, env=env, check=False)
        for line in done.stdout.splitlines():
            kind, _, number = line.partition(" ")
            self.facts.append((kind, int(number or 0)))
        return done.returncode
