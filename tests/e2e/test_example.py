"""The example of user's code: every command of its README works, in order, from its directory."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
from tests.e2e.federation import SECONDS
from tests.e2e.pasting import Terminal, commands

from puf_common.config.exit_codes import Exit
from puf_common.tensors.manifest import MODEL
from puf_common.tensors.model_file import read_manifest, read_payload
from puf_common.v1 import federation_pb2 as fed
from puf_common.v1 import tickets_pb2 as tk

pytestmark = pytest.mark.e2e

EXAMPLE = Path(__file__).parents[2] / "examples" / "segmentation"


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    shutil.copytree(EXAMPLE, tmp_path / "example", ignore=shutil.ignore_patterns("__pycache__", "federation"))
    with ExitStack() as stack:
        yield Terminal(tmp_path / "example", stack)


def test_every_command_of_the_readme_works(terminal: Terminal) -> None:
    pasted = commands((EXAMPLE / "README.md").read_text())
    assert {"puf-server init", "puf-server serve", "puf-client run", "python own_loop.py"} <= {
        " ".join(line.split()[:2]) for line in pasted
    }
    shown: dict[str, str] = {}
    own = ""
    for line in pasted:
        if line == "puf-server status":
            terminal.wait_for(fed.PHASE_IDLE)
        done = terminal.paste(line)
        if done is not None:
            assert done.code == Exit.OK, f"{line}\n{done.out}{done.err}"
            shown[line] = done.out
        if line.startswith("puf-client --unlearn"):
            loop = terminal.running.pop(next(line for line in terminal.running if "own_loop" in line))
            assert loop.wait(SECONDS) == Exit.FORGOTTEN
            own = loop.log.read_text()
            _check(terminal)
    for process in terminal.running.values():
        assert process.wait(SECONDS) == Exit.OK

    def shown_by(prefix: str) -> str:
        return next(text for line, text in shown.items() if line.startswith(prefix))

    assert "everything is in order" in shown_by("puf-client check")
    assert re.search(r"score|hold-out", shown_by("puf-server status"))
    assert "request of clinic-1 for 4 samples was applied in round 7" in shown_by("puf-client unlearn")
    assert "request of clinic-2 was applied" in shown_by("puf-client --unlearn")
    assert "clinic-2" in shown_by("puf-server tickets")
    assert re.search(r"round \d+: loss 0\.", own)
    for name in ("model", "recovered"):
        _check_model(terminal.directory / f"{name}.safetensors")


def _check(terminal: Terminal) -> None:
    """Checks that both requests are completed and that the federation learned the task."""
    tickets = {t.client: t for t in terminal.control.tickets()}
    patient, clinic = tickets["clinic-1"], tickets["clinic-2"]
    assert {patient.state, clinic.state} == {tk.TICKET_STATE_COMPLETED}
    assert patient.request.scope == tk.SCOPE_SAMPLES
    assert (patient.request.forget_samples, patient.request.retain_samples) == (4, 32)
    # Mean score on the clinics' hold-outs before the first request; a model that marks everything has less than 0.3.
    assert patient.score_before.accuracy > 0.5
    assert patient.score_before.clients == 2
    assert clinic.score_recovered.samples == 2 * 12
    members = {c.name: c for c in terminal.control.clients()}
    assert {name: (m.status, m.samples) for name, m in members.items()} == {
        "clinic-0": ("active", 36),
        "clinic-1": ("active", 32),
        "clinic-2": ("forgotten", 0),
    }
    rounds = {r.number: r for r in terminal.control.rounds(limit=100)}
    # Both parts of clinic-1 and the two other clinics; later all three with fewer images.
    assert (rounds[7].kind, rounds[7].received) == ("unlearn", 4)
    after = [r for number, r in rounds.items() if 7 < number < clinic.applied_round]
    assert {r.samples_processed for r in after} <= {36 + 32 + 36}
    assert rounds[clinic.applied_round].received == 3
    assert all(r.samples_processed == 36 + 32 for n, r in rounds.items() if n > clinic.applied_round)


def _check_model(path: Path) -> None:
    """Checks that unlearning left the buffers valid: variances are positive, counters have grown."""
    manifest = read_manifest(path)[0]
    views = {name: np.asarray(v, np.float64) for name, v in manifest.views(read_payload(path), MODEL).items()}
    variances = [v for name, v in views.items() if name.endswith("running_var")]
    assert len(variances) == 3
    assert all((v > 0).all() for v in variances)
    assert views["up.1.num_batches_tracked"] >= 6 * 5
    assert all(np.isfinite(v).all() for v in views.values())
