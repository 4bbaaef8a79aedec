"""Functions that the trials in this directory share: calls to Docker, checks and waiting."""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

__all__ = [
    "ROOT",
    "SECONDS",
    "available",
    "available_image",
    "check",
    "docker",
    "engine_answers",
    "found_compose",
    "free_port",
    "say",
    "wait_for",
]

ROOT = Path(__file__).resolve().parent.parent
SECONDS = 180.0


def docker(*words: str, text: str | None = None) -> str:
    """The output of one docker command, including errors of containers. `text` is its input."""
    done = subprocess.run(["docker", *words], input=text, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)  # noqa: S607
    if done.returncode:
        raise SystemExit(f"failed ({done.returncode}): docker {' '.join(words)}\n{done.stdout[-4000:]}")
    return done.stdout


def available(overlay: str, variable: str) -> str | None:
    """The image that an overlay names; None if it is neither here nor in a registry that answers."""
    wanted = re.search(rf"{variable}:-([^}}]+)}}", (ROOT / "deploy" / f"{overlay}.yml").read_text())
    assert wanted is not None
    for words in (["image", "inspect"], ["pull"]):
        if subprocess.run(["docker", *words, wanted[1]], capture_output=True).returncode == 0:  # noqa: S607
            return wanted[1]
    return None


def available_image(overlay: str, variable: str, stand_in: str) -> str:
    """The image that an overlay names if it is available, otherwise one that is built from the Dockerfile `stand_in`."""
    if image := available(overlay, variable):
        return image
    name = f"puf-trial-{variable.lower().removesuffix('_image')}"
    docker("build", "-t", name, "-", text=stand_in)
    say(f"the image of {overlay}.yml is not available; using one with Debian's package")
    return name


def engine_answers() -> bool:
    """Whether a Docker engine is available."""
    if not shutil.which("docker"):
        return False
    return subprocess.run(["docker", "info"], capture_output=True).returncode == 0  # noqa: S607


def found_compose() -> list[str] | None:
    """The command of Docker Compose; None if it is not installed."""
    for words in (["docker", "compose"], ["docker-compose"]):
        if shutil.which(words[0]) and subprocess.run([*words, "version"], capture_output=True).returncode == 0:
            return words
    return None


def free_port() -> int:
    """A free port of loopback."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for(what: str, condition: Callable[[], bool], seconds: float = SECONDS) -> None:
    """Waits until the condition holds; ends the trial after `seconds`."""
    until = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > until:
            raise SystemExit(f"waited {seconds:.0f} s without success: {what}")
        time.sleep(0.1)


def say(text: str) -> None:
    """Prints a remark."""
    print(f"      {text}", flush=True)


def check(claim: str, holds: bool, facts: object = "") -> None:
    """Prints a claim and whether it holds; ends the trial if it does not."""
    print(f"{'ok  ' if holds else 'FAIL'}  {claim}", facts if not holds else "", flush=True)
    if not holds:
        raise SystemExit(1)
