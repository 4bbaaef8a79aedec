"""Failpoints: no effect without the variable, the stated actions with it, and a complete registry."""

from __future__ import annotations

import ast
import errno
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import puf_server
from puf_common.config.exit_codes import Exit
from puf_common.errors import Unavailable, UsageError
from puf_server import failpoints
from puf_server.failpoints import POINTS, arm, hit, hits
from tests.running import make_state


@pytest.fixture(autouse=True)
def _disarmed() -> Iterator[None]:
    yield
    failpoints.disarm()


def outcome(name: str) -> str:
    try:
        hit(name)
    except OSError as error:
        return errno.errorcode[error.errno or 0]
    except Unavailable:
        return "UNAVAILABLE"
    return "off"


def test_nothing_happens_unless_armed() -> None:
    assert [outcome(name) for name in POINTS] == ["off"] * len(POINTS)


def test_each_action_lasts_for_its_number_of_hits() -> None:
    arm("spool.write=1*off->2*enospc->1*unavailable->1*sleep(1)->eio; fold.end=1*eio")
    found = [outcome("spool.write") for _ in range(7)]
    assert found == ["off", "ENOSPC", "ENOSPC", "UNAVAILABLE", "off", "EIO", "EIO"]
    assert [outcome("fold.end"), outcome("fold.end"), outcome("fold.start")] == ["EIO", "off", "off"]
    assert (hits("spool.write"), hits("fold.end"), hits("fold.start")) == (7, 2, 0)


@pytest.mark.parametrize(
    "text", ["no.such=kill", "fold.end", "fold.end=", "fold.end=explode", "fold.end=x*kill", "fold.end=sleep"]
)
def test_unknown_names_and_actions_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="PUF_FAILPOINTS"):
        arm(text)


def test_a_server_with_an_unknown_failpoint_does_not_start(tmp_path: Path) -> None:
    state = make_state(tmp_path / "state")
    words = [str(Path(sys.executable).with_name("puf-server")), "serve", "--state", str(state), "--insecure"]
    done = subprocess.run(
        words,
        env=os.environ | {"PUF_FAILPOINTS": "no.such=kill", "PUF_TEST_FAILPOINTS": "yes"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == Exit.USAGE
    assert "no failpoint 'no.such'" in done.stderr


def test_a_server_with_failpoints_logs_a_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("PUF_FAILPOINTS", "fold.end=1*off")
    monkeypatch.setenv("PUF_TEST_FAILPOINTS", "yes")
    failpoints.arm_from_environment()
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert "RUNNING WITH FAILPOINTS" in record.getMessage()


def test_with_only_one_variable_a_server_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PUF_FAILPOINTS", "fold.end=kill")
    monkeypatch.delenv("PUF_TEST_FAILPOINTS", raising=False)
    with pytest.raises(UsageError, match="PUF_TEST_FAILPOINTS=yes"):
        failpoints.arm_from_environment()
    failpoints.hit("fold.end")
    monkeypatch.setenv("PUF_FAILPOINTS", " ")
    failpoints.arm_from_environment()


def test_the_registry_lists_the_failpoints_in_the_code() -> None:
    """Names are literals, except those of files and commits, which the code composes."""
    found = set()
    for path in Path(puf_server.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "hit":
                found |= {a.value for a in node.args if isinstance(a, ast.Constant)}
    found |= {f"{f}.{w}" for f in ("spool", "model") for w in ("write", "before_fsync", "after_fsync", "after_rename")}
    found |= {f"commit.{kind}.{when}" for kind in ("train", "unlearn", "recover") for when in ("before", "after")}
    assert found == set(POINTS)


def test_a_wrong_clock_needs_the_switch_and_follows_its_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    skew = tmp_path / "skew"
    skew.write_text("3600")
    monkeypatch.setenv("PUF_TEST_CLOCK", str(skew))
    monkeypatch.delenv("PUF_TEST_FAILPOINTS", raising=False)
    with pytest.raises(UsageError, match="PUF_TEST_FAILPOINTS=yes"):
        failpoints.wall_clock()
    monkeypatch.setenv("PUF_TEST_FAILPOINTS", "yes")
    clock = failpoints.wall_clock()
    before = clock()
    skew.write_text("-3600")
    assert clock() < before - 7000
    monkeypatch.delenv("PUF_TEST_CLOCK")
    assert failpoints.wall_clock() is time.time
