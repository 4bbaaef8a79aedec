"""Measures the parts of the bench one after the other, and writes figures and picture."""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from puf_common.config.exit_codes import Exit
from puf_common.errors import PufError, UsageError
from puf_common.logging import configure
from puf_lab.bench.report import Report

USUAL = (
    "starting",
    "transfer",
    "wire",
    "line",
    "folding",
    "forgetting",
    "training",
    "encoding",
    "crowd",
    "servers",
    "growth",
    "large",
    "simulation",
    "flower",
)
ALL = (*USUAL, "flare")
# Parts that also measure data sets from a directory.
_DATA = ("encoding",)


def run_bench(out: Path, *, parts: Sequence[str], repeats: int, data_dir: Path | None = None) -> int:
    """Measures these parts one after the other. A part that fails is reported and does not stop the others."""
    configure(level="error")
    for part in parts:
        if part not in ALL:
            raise UsageError(f"there is no part {part!r} of the bench; use {', '.join(ALL)}")
    out.mkdir(parents=True, exist_ok=True)
    report = Report()
    if (out / "result.json").exists() and "transfer" not in parts:
        # Peers are compared with rounds of an earlier run, because this run measures none.
        report.details |= json.loads((out / "result.json").read_text())["details"]
    for part in sorted(parts, key=ALL.index):
        report.console.print(f"[bold]{part}[/]")
        started = time.monotonic()
        scratch = Path(tempfile.mkdtemp(prefix=f"puf-{part}-"))
        try:
            # Imported late, because parts import torch, matplotlib and servers.
            module = import_module(f"puf_lab.bench.{'transfer' if part == 'wire' else part}")
            getattr(module, part)(report, scratch, repeats, **({"data_dir": data_dir} if part in _DATA else {}))
        except (PufError, OSError) as error:
            report.failures[part] = str(error)
            report.console.print(f"  not measured: {error}")
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
        report.details.setdefault("minutes", {})[part] = round((time.monotonic() - started) / 60, 1)
        report.write(out / "result.json")
    report.show()
    import_module("puf_lab.bench.picture").draw(json.loads((out / "result.json").read_text()), out / "bench.png")
    report.console.print(f"figures: {out / 'result.json'}, picture: {out / 'bench.png'}")
    return Exit.OK if not report.failures else Exit.FAILURE
