"""`puf-lab report`: tables and figures of experiments, as one page that contains everything and as files."""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from puf_common.config.exit_codes import Exit
from puf_common.errors import UsageError
from puf_lab.reporting import plots
from puf_lab.reporting.curves import recovery_curves
from puf_lab.reporting.findings import findings
from puf_lab.reporting.radar import radar
from puf_lab.reporting.results import FILE, Results, read
from puf_lab.reporting.sheet import Sheet
from puf_lab.reporting.summary import Summary, summarise
from puf_lab.reporting.tables import sheets
from puf_lab.reporting.terminal import new_console, print_summary

_RADAR = "Methods compared; a smaller polygon is better. The rim is Original, or the cost of retraining; grey is the noise floor"


@dataclass(frozen=True)
class Figure:
    title: str
    path: Path

    @property
    def base64(self) -> str:
        return base64.b64encode(self.path.read_bytes()).decode()


@dataclass(frozen=True)
class Part:
    """One experiment on the page."""

    title: str
    note: str
    findings: Sequence[str]
    facts: Sequence[str]
    sheets: Sequence[Sheet]
    figures: Sequence[Figure]


def run_report(paths: Sequence[Path], out: Path) -> int:
    """Writes the report. Results whose means contradict each other are refused, not printed."""
    found = list(paths) or sorted(path.parent for path in Path("runs").glob(f"*/{FILE}"))
    if not found:
        raise UsageError("there are no results in runs/; `puf-lab run digits` makes some")
    console = new_console()
    summaries = [summarise(results) for results in read(found)]
    parts = [_part(summary, out) for summary in summaries]
    for summary in summaries:
        console.print(f"[bold]{summary.results.experiment['title']}[/bold]")
        print_summary(console, summary)
    page = out / "report.html"
    page.write_text(render(parts))
    console.print(f"report: {page}")
    return Exit.OK


def render(parts: Sequence[Part]) -> str:
    """The page. All text is escaped."""
    from jinja2 import Environment, PackageLoader

    environment = Environment(
        loader=PackageLoader("puf_lab.reporting"), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    return environment.get_template("report.html").render(parts=parts)


def _part(summary: Summary, out: Path) -> Part:
    """Writes the files of one experiment and returns its part of the page."""
    results = summary.results
    e = results.experiment
    folder = out / (results.name if e["profile"] == "paper" else f"{results.name}.{e['profile']}")
    folder.mkdir(parents=True, exist_ok=True)
    part = Part(e["title"], e["note"], findings(summary), _facts(results), sheets(summary), _figures(summary, folder))
    for sheet in part.sheets:
        (folder / f"{sheet.name}.csv").write_text(sheet.csv())
        (folder / f"{sheet.name}.tex").write_text(sheet.latex())
    text = [
        f"# {part.title}\n",
        " ".join(part.findings) + "\n",
        f"{part.note}\n" if part.note else "",
        *(f"{fact}\n" for fact in part.facts),
    ]
    text += [sheet.markdown() for sheet in part.sheets]
    text += [f"![{figure.title}]({figure.path.name})\n" for figure in part.figures]
    (folder / "report.md").write_text("\n".join(part for part in text if part))
    return part


def _facts(results: Results) -> list[str]:
    lines = [f"Setting {results.name}, profile {results.experiment['profile']}."]
    for facts in results.facts:
        seconds = f", {facts['seconds']:.0f} s" if "seconds" in facts else ""
        # Files of version 0.1.0 state the kind of the federation as "engine".
        kind = facts.get("federation", facts.get("engine", ""))
        lines.append(
            f"{facts['command']} (commit {facts['commit'][:12] or 'unknown'}, {facts['device']}, {kind}{seconds})"
        )
    return lines


def _figures(summary: Summary, folder: Path) -> list[Figure]:
    wanted: list[tuple[str, str, Callable[[Path], None]]] = [
        ("Test and forget score after unlearning", "recovery", lambda path: recovery_curves(path, summary)),
        ("Recovery rounds and distance to the retrained model", "scatter", lambda path: plots.scatter(path, summary)),
        (
            _RADAR,
            "radar",
            lambda path: radar(path, summary),
        ),
    ]
    for seed, counts in summary.results.labels.items():
        title = f"Label distribution, {summary.results.experiment['data']['partition']}, seed {seed}"
        wanted.append((title, f"labels-{seed}", lambda path, c=counts, t=title: plots.label_distribution(path, c, t)))  # type: ignore[misc]
    figures = []
    for title, name, draw in wanted:
        path = folder / f"{name}.png"
        path.unlink(missing_ok=True)
        try:
            draw(path)
        except UsageError:
            continue  # these runs have no data for this figure
        figures.append(Figure(title, path))
    return figures
