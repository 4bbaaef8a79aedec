"""What the trials beside this file share: an engine to ask, claims to check, conditions to wait for."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

__all__ = ["ROOT", "SECONDS", "check", "docker", "engine_answers", "found_compose", "free_port", "say", "wait_for"]

ROOT = Path(__file__).resolve().parent.parent
SECONDS = 180.0


def docker(*words: str, text: str | None = None) -> str:
    """What one command of the engine's client writes, errors of containers too; `text` is its input."""
    done = subprocess.run(["docker", *words], input=text, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)  # noqa: S607
    if done.returncode:
        raise SystemExit(f"failed ({done.returncode}): docker {' '.join(words)}\n{done.stdout[-4000:]}")
    return done.stdout


def engine_answers() -> bool:
    if not shutil.which("docker"):
        return False
    return subprocess.run(["docker", "info"], capture_output=True).returncode == 0  # noqa: S607


def found_compose() -> list[str] | None:
    for words in (["docker", "compose"], ["docker-compose"]):
        if shutil.which(words[0]) and subprocess.run([*words, "version"], capture_output=True).returncode == 0:
            return words
    return None


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for(what: str, condition: Callable[[], bool], seconds: float = SECONDS) -> None:
    until = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > until:
            raise SystemExit(f"waited {seconds:.0f} s in vain: {what}")
        time.sleep(0.1)


def say(text: str) -> None:
    print(f"      {text}", flush=True)


def check(claim: str, holds: bool, facts: object = "") -> None:
    print(f"{'ok  ' if holds else 'FAIL'}  {claim}", facts if not holds else "", flush=True)
    if not holds:
        raise SystemExit(1)
