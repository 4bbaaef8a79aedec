"""The commands of the page on tracking work as written, and write TensorBoard's event files."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.e2e.federation import SECONDS
from tests.e2e.pasting import Terminal, commands

from puf_common.config.exit_codes import Exit
from puf_lab.federations.processes import wait_until

pytestmark = pytest.mark.e2e


def test_the_commands_of_the_page_work(tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX", reason="install puf-fl[tensorboard]")
    pasted = commands((Path(__file__).parents[2] / "docs" / "tracking.md").read_text())
    assert any("--track" in line for line in pasted)
    with ExitStack() as stack:
        terminal = Terminal(tmp_path, stack)
        for line in pasted:
            done = terminal.paste(line)
            assert done is None or done.code == Exit.OK, f"{line}\n{done.out}{done.err}"
            if line.startswith("puf-server serve"):
                [server] = terminal.running.values()
                wait_until(lambda: '"serving"' in server.log.read_text(), SECONDS, server)  # noqa: B023
        for process in terminal.running.values():
            assert process.wait(SECONDS) == Exit.OK
    [written] = (tmp_path / "board").glob("f-*/events.out.tfevents.*")
    assert b"round/seconds" in written.read_bytes()
