"""Ctrl-C ends a demo and all processes that it started."""

from __future__ import annotations

import signal
from pathlib import Path

import psutil
import pytest
from tests.e2e.federation import SECONDS

from puf_common.config.exit_codes import Exit
from puf_lab.federations.processes import Process, program, wait_until

pytestmark = pytest.mark.e2e


def _started_for(directory: Path) -> list[psutil.Process]:
    """Processes with this directory in their command line, with any parent."""
    found = []
    for process in psutil.process_iter():
        try:
            if str(directory) in " ".join(process.cmdline()):
                found.append(process)
        except (psutil.NoSuchProcess, psutil.ZombieProcess):
            continue
    return found


# The demo alone with `puf-server init`; then with the server and a fleet whose members have been forked.
@pytest.mark.parametrize("processes", [2, 6])
def test_ctrl_c_leaves_no_process_behind(processes: int, tmp_path: Path) -> None:
    out = tmp_path / "demo"
    with Process([program("puf-lab"), "demo", "--out", str(out)], tmp_path / "demo.log") as demo:
        wait_until(lambda: len(_started_for(out)) >= processes, SECONDS, demo)
        family = _started_for(out)
        demo.send(signal.SIGINT)
        assert demo.wait(SECONDS) == Exit.INTERRUPTED
        log = demo.log.read_text()
    assert "Traceback" not in log
    assert log.splitlines()[-1] == "error: interrupted"
    # The demo has waited for its children. Their children end at once with them.
    _, alive = psutil.wait_procs(family, timeout=10)
    assert not alive
    assert not _started_for(out)
