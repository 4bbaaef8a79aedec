"""The README: the commands of its federation work as written, and its links and pictures exist."""

from __future__ import annotations

import re
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.e2e.federation import SECONDS
from tests.e2e.pasting import Terminal, blocks, commands

from puf_common.config.exit_codes import Exit
from puf_common.tensors.model_file import read_manifest

README = (Path(__file__).parents[2] / "README.md").read_text()


@pytest.mark.e2e
def test_the_commands_of_the_federation_section_work(tmp_path: Path) -> None:
    section = re.search(r"## A federation of your own\n(.*?)\n## ", README, re.DOTALL)
    assert section is not None
    pasted = [line for line in commands(section[1]) if not line.startswith("source ")]
    assert {"puf-server init", "puf-server serve", "puf-client fleet", "puf-client --unlearn"} <= {
        " ".join(line.split()[:2]) for line in pasted
    }
    with ExitStack() as stack:
        terminal = Terminal(tmp_path, stack)
        shown = {}
        for line in pasted:
            done = terminal.paste(line)
            if done is not None:
                assert done.code == Exit.OK, f"{line}\n{done.out}{done.err}"
                shown[" ".join(line.split()[:2])] = done.out
        for line, process in terminal.running.items():
            if line.startswith("puf-server dashboard"):
                assert "connected to the server" in process.log.read_text()
                assert process.end() == Exit.OK
            else:
                assert process.wait(SECONDS) in (Exit.OK, Exit.FORGOTTEN)
    told = shown["puf-client --unlearn"]
    assert "request of client-1 was applied" in told
    # The federation has something to forget.
    assert re.search(r"Verdict: (forgotten|still known)\.", told), told
    assert read_manifest(tmp_path / "model.safetensors")[0].parameters > 10_000


def test_the_other_commands_are_targets_of_the_makefile_and_commands_of_pages_that_are_run() -> None:
    """`tests/test_docs.py` states what runs the pages."""
    root = Path(__file__).parents[2]
    targets = re.findall(r"^([a-z-]+):", (root / "Makefile").read_text(), re.MULTILINE)
    known = {f"make {name}" for name in targets} | {"source .venv/bin/activate"}
    for page in ("deploy.md", "lab.md"):
        known |= {line.partition(" #")[0].strip() for line in commands((root / "docs" / page).read_text())}
    shown = [block for block in blocks(README) if "puf-server init" not in block]
    assert len(shown) == 3
    lines = {line.partition(" #")[0].strip() for block in shown for line in block.splitlines()}
    assert {word for line in lines for word in line.split(" && ")} <= known


def test_every_link_leads_to_a_file_and_no_placeholder_is_left() -> None:
    root = Path(__file__).parents[2]
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", README):
        assert (root / target).exists(), target
    assert not re.findall(r"^[A-Z]+_[A-Z]+\b|\b(?:TODO|TBD|FIXME)\b", README, re.MULTILINE)
