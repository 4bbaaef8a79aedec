"""`puf-lab report`: tables and figures of experiments, as one page that carries everything and as files."""

from __future__ import annotations

import base64
import html
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console

from puf_common.config.exit_codes import Exit
from puf_common.errors import UsageError
from puf_lab.reporting import plots
from puf_lab.reporting.results import FILE, Results, read
from puf_lab.reporting.summary import Summary, rich_summary, summarise
from puf_lab.reporting.tables import Sheet, sheets

__all__ = ["run_report"]

_CSS = """
body { font: 15px/1.5 system-ui, sans-serif; color: #222; max-width: 1150px; margin: 2rem auto; padding: 0 1rem }
table { border-collapse: collapse; font-size: 13px; margin: .5rem 0 }
th, td { padding: .25rem .6rem; text-align: right; border-bottom: 1px solid #ddd }
th { border-bottom: 2px solid #888 }
th:first-child, td:first-child { text-align: left }
img { max-width: 100%; margin: .5rem 0 }
.note { color: #555; font-size: 13px; margin: .2rem 0 }
.scroll { overflow-x: auto }
"""


def run_report(paths: Sequence[Path], out: Path) -> int:
    """Refuses results whose means contradict each other rather than printing them."""
    found = list(paths) or sorted(path.parent for path in Path("runs").glob(f"*/{FILE}"))
    if not found:
        raise UsageError("there are no results in runs/; `puf-lab run digits` makes some")
    console = Console(highlight=False)
    out.mkdir(parents=True, exist_ok=True)
    parts = []
    for results in read(found):
        summary = summarise(results)
        parts.append(_experiment(summary, out))
        console.print(f"[bold]{results.experiment['title']}[/bold]")
        console.print(rich_summary(summary))
    page = out / "report.html"
    page.write_text(
        f"<!doctype html><html lang=en><meta charset=utf-8><title>PUF: experiments</title><style>{_CSS}</style>"
        f"<h1>Federations that forget: experiments</h1>{''.join(parts)}</html>\n"
    )
    console.print(f"report: {page}")
    return Exit.OK


def _experiment(summary: Summary, out: Path) -> str:
    """Writes one experiment's files and returns its part of the page."""
    results = summary.results
    e = results.experiment
    folder = out / (results.name if e["profile"] == "paper" else f"{results.name}.{e['profile']}")
    folder.mkdir(exist_ok=True)
    made = sheets(summary)
    text = [
        f"# {e['title']}\n",
        f"{e['note']}\n" if e["note"] else "",
        *(f"{line}\n" for line in _told(results, summary)),
    ]
    for sheet in made:
        (folder / f"{sheet.name}.csv").write_text(sheet.csv())
        (folder / f"{sheet.name}.tex").write_text(sheet.latex())
        text.append(sheet.markdown())
    figures = _figures(summary, folder)
    text += [f"![{title}]({path.name})\n" for title, path in figures]
    (folder / "report.md").write_text("\n".join(part for part in text if part))
    return _part(e["title"], e["note"], _told(results, summary), made, figures)


def _told(results: Results, summary: Summary) -> list[str]:
    lines = [f"Setting {results.name}, profile {results.experiment['profile']}."]
    if summary.gap is not None:
        word = {
            True: "There is something to forget",
            False: "What there is to forget cannot be told from chance here",
            None: "What there is to forget, from one run alone",
        }[summary.measurable]
        lines.append(f"{word}: the original is {summary.gap} points from Retrain on the forget data.")
    for facts in results.facts:
        seconds = f", {facts['seconds']:.0f} s" if "seconds" in facts else ""
        lines.append(
            f"{facts['command']} (commit {facts['commit'][:12] or 'unknown'}, {facts['device']}, {facts['engine']}{seconds})"
        )
    return lines


def _figures(summary: Summary, folder: Path) -> list[tuple[str, Path]]:
    wanted: list[tuple[str, str, Callable[[Path], None]]] = [
        ("Test and forget score after unlearning", "recovery", lambda path: plots.recovery_curves(path, summary)),
        ("Recovery rounds and distance to the retrained model", "scatter", lambda path: plots.scatter(path, summary)),
        ("Methods compared; the rim is the ideal", "radar", lambda path: plots.radar(path, summary)),
    ]
    for seed, counts in summary.results.labels.items():
        title = f"Who holds what, {summary.results.experiment['data']['partition']}, seed {seed}"
        wanted.append((title, f"labels-{seed}", lambda path, c=counts, t=title: plots.label_distribution(path, c, t)))  # type: ignore[misc]
    figures = []
    for title, name, draw in wanted:
        path = folder / f"{name}.png"
        path.unlink(missing_ok=True)
        try:
            draw(path)
        except UsageError:
            continue  # these runs have nothing to draw there
        figures.append((title, path))
    return figures


def _part(
    title: str, note: str, told: Sequence[str], made: Sequence[Sheet], figures: Sequence[tuple[str, Path]]
) -> str:
    lines = [f"<h2>{html.escape(title)}</h2>", f"<p><strong>{html.escape(note)}</strong></p>" if note else ""]
    lines += [f"<p class=note>{html.escape(line)}</p>" for line in told]
    lines += [f"<div class=scroll>{sheet.html()}</div>" for sheet in made]
    for caption, path in figures:
        data = base64.b64encode(path.read_bytes()).decode()
        lines.append(
            f'<h3>{html.escape(caption)}</h3><img alt="{html.escape(caption)}" src="data:image/png;base64,{data}">'
        )
    return "".join(lines)
