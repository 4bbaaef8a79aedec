"""A receipt as one page for people who are not engineers: self-contained HTML, nothing is fetched, no script runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from html import escape
from pathlib import Path
from typing import Any

from puf_common.files.private import write_over
from puf_common.receipts.evidence import STATEMENT, Verdict
from puf_common.receipts.receipt_file import Receipt, read

__all__ = ["page", "write"]

_STAGES = {"before": "Before", "unlearned": "Right after forgetting", "recovered": "The model in use now"}
_METHODS = {
    "puf-regular": "the client's last contribution entered the model with its sign reversed, while the others trained on",
    "puf-special": "the client's last contribution entered the model with its sign reversed, without the others; whoever "
    "holds the models before and right after can compute that contribution",
    "reset": "nobody else was left, so the model went back to its initial state, which knew nobody",
    "retrain": "the model was trained anew from its initial state, without this data",
    "natural": "training went on without this data; nothing was taken out of the model",
    "not": "the first layer of the model was negated, and the others trained on",
    "federaser": "the earlier rounds were repeated without this data, with the others' contributions corrected",
    "none": "nothing of it had ever entered a model, so no model had to change",
}
_CHECK = "puf-client verify"

_STYLE = """
:root { --ink: #1d2733; --soft: #5b6875; --line: #dde3e9; --paper: #fff; --good: #1f7a4d; --bad: #b23a2e; --open: #8a6d1d }
* { box-sizing: border-box }
body { margin: 0; background: #eef1f4; color: var(--ink); font: 14px/1.45 "Segoe UI", "Helvetica Neue", Arial, sans-serif }
main { max-width: 820px; margin: 24px auto; padding: 36px 44px 28px; background: var(--paper); border: 1px solid var(--line) }
header { display: flex; justify-content: space-between; color: var(--soft); font-size: 12.5px }
h1 { font-size: 25px; line-height: 1.2; margin: 10px 0 16px }
h2 { font-size: 15px; margin: 22px 0 6px }
p { margin: 0 0 8px }
.verdict { border-left: 5px solid var(--tone); padding: 9px 14px; background: #f6f8fa; margin: 0 0 4px }
.verdict b { color: var(--tone) }
table { border-collapse: collapse; width: 100% }
td, th { text-align: left; vertical-align: top; padding: 5px 12px 5px 0; border-bottom: 1px solid var(--line); font-weight: 400 }
th { color: var(--soft) }
.facts th { width: 175px }
.figures th { font-size: 12.5px; vertical-align: bottom }
.figures td { width: 25% }
.bar { display: block; height: 5px; background: #e6ebf0; margin: 3px 0 2px; max-width: 150px }
.bar i { display: block; height: 100%; background: var(--ink) }
.bar.unseen i { background: #94a3b3 }
.small { color: var(--soft); font-size: 12.5px }
code { font: 11.5px/1.4 ui-monospace, "DejaVu Sans Mono", Menlo, monospace; overflow-wrap: anywhere }
footer { margin-top: 20px; border-top: 1px solid var(--line); padding-top: 10px; color: var(--soft); font-size: 12.5px }
@page { size: A4; margin: 13mm }
@media print {
  body { background: none; font-size: 10.5px; line-height: 1.35 }
  main { margin: 0; border: 0; padding: 0; max-width: none }
  h1 { font-size: 19px } h2 { font-size: 12.5px; margin: 13px 0 4px } td, th { padding: 2.5px 10px 2.5px 0 }
  .small, .figures th, footer, header { font-size: 9.5px } code { font-size: 9px }
}
"""


def write(file: bytes, directory: Path) -> list[Path]:
    """Puts a receipt and its page into a directory: receipt-<ticket>.json and .html. The receipt is checked first."""
    receipt = read(file)
    directory.mkdir(parents=True, exist_ok=True)
    name = "".join(c for c in receipt.ticket if c.isalnum() or c in "-_")[:80]
    json_path, html_path = (directory / f"receipt-{name}.{kind}" for kind in ("json", "html"))
    write_over(json_path, file, mode=0o644)
    write_over(html_path, page(receipt).encode(), mode=0o644)
    return [json_path, html_path]


def page(receipt: Receipt) -> str:
    r = receipt.content.as_json()
    ticket, federation = r["ticket"], r["federation"]
    title = f"{_who(ticket)} {'were' if ticket['scope'] == 'samples' else 'was'} forgotten"
    parts = [
        f"<header><span>Receipt for a request to be forgotten</span><span>{_text(federation['title'])}</span></header>",
        f"<h1>{_text(title)}<br>on {_day(ticket['completed_at'])}</h1>",
        _verdict(r["measured_by_client"]),
        "<h2>What was asked</h2>",
        _facts(_asked(ticket)),
        "<h2>What was done</h2>",
        _facts(_done(r)),
        "<h2>What the client measured on its own data</h2>",
        _figures(r["measured_by_client"], r["measured_by_others"]),
        "<h2>What this does not prove</h2>",
        f"<p>Forgetting by this method is <b>{_text(STATEMENT)}</b>. It changes how the model behaves; it cannot show that no "
        "trace is left. The figures above are the client's own: the federation passes them on and did not check them. "
        "Copies that left the federation before (see above) are not reached by it.</p>",
        "<h2>For those who check</h2>",
        _facts(_technical(receipt)),
        f"<footer>This page repeats what the signed file receipt-{_text(ticket['id'])}.json says. Only that file counts: "
        f"check it with <code>{_CHECK} receipt-{_text(ticket['id'])}.json</code>, without any network. "
        f"Issued {_day(r['issued_at'])} by {_text(r['software'])}.</footer>",
    ]
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        f"<title>Receipt {_text(ticket['id'])}</title><style>{_STYLE}</style></head>\n<body><main>\n"
        + "\n".join(parts)
        + "\n</main></body></html>\n"
    )


def _verdict(measured: Mapping[str, Any]) -> str:
    verdict = measured["verdict"]
    if verdict == Verdict.LIKE_UNSEEN:
        return _banner(
            "good",
            "Like unseen data.",
            "In the client's tests the model treats the forgotten data as data it never saw.",
        )
    if verdict == Verdict.NOT_LIKE_UNSEEN:
        return _banner("bad", "Not like unseen data.", f"In the client's tests {_how_it_differs(measured)}.")
    if verdict == Verdict.TOO_FEW:
        return _banner(
            "open", "Too few samples.", "The client has too little data to tell whether the model still knows it."
        )
    return _banner("open", "Not measured.", "The client did not test the model on its own data.")


def _how_it_differs(measured: Mapping[str, Any]) -> str:
    """The attack that tells most, in words."""
    model = next(measured[s] for s in ("recovered", "unlearned") if measured[s] and measured[s]["verdict"])
    telling = [
        a for a in (model["yeom"], model["song"]) if a is not None and a["verdict"] == Verdict.NOT_LIKE_UNSEEN.value
    ]
    gap = max((a["forget"]["share"] - a["holdout"]["share"] for a in telling), key=abs, default=0.0)
    if gap > 0:
        return "the model still treats the forgotten data more like its training data than like data it never saw"
    return "the model does worse on the forgotten data than on data it never saw: that it was forgotten shows"


def _banner(tone: str, head: str, text: str) -> str:
    return f'<div class="verdict" style="--tone: var(--{tone})"><b>{_text(head)}</b> {_text(text)}</div>'


def _asked(ticket: Mapping[str, Any]) -> list[tuple[str, str]]:
    if ticket["scope"] == "samples":
        scope = f"{ticket['forget_samples']} samples of {ticket['client']}, which stays with {ticket['retain_samples']} others"
    else:
        scope = f"everything that {ticket['client']} ever contributed; it left the federation"
    by = "the client itself" if ticket["filed_by"] == "client" else "the operator, on the client's behalf"
    rows = [("To be forgotten", _text(scope)), ("Asked by", _text(by))]
    if ticket["reference"]:
        rows.append(("Reference", _text(ticket["reference"])))
    rows.append(("Received", f"{_day(ticket['received_at'])}; to be done by {_day(ticket['deadline_at'])}"))
    return rows


def _done(r: Mapping[str, Any]) -> list[tuple[str, str]]:
    method, rounds, costs = r["method"], r["rounds"], r["costs"]
    name, _, reason = method["name"].partition(" (")
    how = _METHODS.get(name, name) + (f" ({reason}" if reason else "")
    if rounds["applied"] is not None:
        how = f"in round {rounds['applied']}, {_day(r['ticket']['applied_at'])}: {how}"
    rows = [("Forgetting", _text(how))]
    if rounds["recovery"] or rounds["recovered"] is not None:
        then = {
            True: "the model is as good for the others as before",
            False: "the model did not get back to its earlier quality within the allowed rounds",
            None: "nobody could measure whether the model is as good as before",
        }[rounds["recovered"]]
        rows.append(("Repair afterwards", _text(f"{_counted(rounds['recovery'], 'round')} without this data; {then}")))
    deleted = r["deleted_models"]
    rows.append(
        (
            "Deleted",
            _text(
                f"{_counted(len(deleted), 'earlier model')} that had learned from this data, and what the client had sent"
            )
            if deleted
            else "what the client had sent; no model had learned from it"
            if rounds["applied"] is None
            else "what the client had sent",
        )
    )
    kept = r.get("deleted_history", {}).get("records", 0)
    if kept:
        rows.append(("Deleted, too", _text(f"{_counted(kept, 'record')} that the method had kept about this client")))
    left = _exports(r["exports"])
    left += [
        f"a backup with {_counted(len(b['versions']), 'such model')} was made on {_day(b['at'])}" for b in r["backups"]
    ]
    copies = "; ".join(left) or "none that the federation knows of: no export and no backup of such models"
    rows.append(("Copies elsewhere", copies))
    total = sum(
        costs[part][way] for part in ("unlearning", "recovery") for way in ("bytes_to_clients", "bytes_from_clients")
    )
    if total:
        rows.append(
            (
                "Effort",
                _text(
                    f"{_counted(sum(costs[part]['rounds'] for part in ('unlearning', 'recovery')), 'round')}, "
                    f"{_megabytes(total)} over the network"
                ),
            )
        )
    return rows


def _exports(found: Sequence[Mapping[str, Any]]) -> list[str]:
    """In few words however many they are; the signed file lists every one."""
    if len(found) <= 3:
        return [f"model {e['version']} was exported on {_day(e['at'])}" for e in found]
    days = sorted(e["at"] for e in found)
    when = f"on {_day(days[0])}" if _day(days[0]) == _day(days[-1]) else f"from {_day(days[0])} to {_day(days[-1])}"
    return [f"{len({e['version'] for e in found})} such models were exported {when}"]


def _figures(measured: Mapping[str, Any], others: Mapping[str, Any]) -> str:
    stages = [(label, measured[stage], others[stage]) for stage, label in _STAGES.items()]
    if not any(mine for _, mine, _ in stages):
        return "<p>Nothing: the client did not measure, or was not there to.</p>"
    rows = "".join(
        f"<tr><td>{_text(label)}</td><td>{_right(mine)}</td>"
        f"<td>{_taken(mine, 'yeom')}</td><td>{_taken(mine, 'song')}</td></tr>"
        for label, mine, _ in stages
    )
    moments = dict(zip(_STAGES.values(), ("before", "right after forgetting", "now"), strict=True))
    for_others = ", ".join(f"{_percent(o['accuracy'])} {moments[label]}" for label, _, o in stages if o)
    note = (
        "<p class='small'>Dark: the forgotten data. Light: data of the same client that no model was ever trained on. Where the "
        "two are alike, the model does not tell them apart. In brackets: where the true share lies in 95 of 100 cases."
    )
    if for_others:
        who = _counted(others["clients"], "client")
        note += f" For the other {who} the model gives this share of right answers: {_text(for_others)}."
    return (
        '<table class="figures"><tr><th>Model</th><th>Right answers</th><th>Taken for training data<br>(by the loss)</th>'
        f"<th>Taken for training data<br>(by the confidence)</th></tr>{rows}</table>{note}</p>"
    )


def _right(mine: Mapping[str, Any] | None) -> str:
    if mine is None:
        return "not measured"
    return _bars(*((s["accuracy"], s["interval"]) if s else None for s in (mine["forget"], mine["holdout"])))


def _taken(mine: Mapping[str, Any] | None, attack: str) -> str:
    if mine is None or mine[attack] is None:
        return "not measured"
    return _bars(*((mine[attack][side]["share"], mine[attack][side]["interval"]) for side in ("forget", "holdout")))


def _bars(forget: tuple[float, Sequence[float]] | None, unseen: tuple[float, Sequence[float]] | None) -> str:
    return "".join(
        f'{_percent(share)} <span class="small">({_number(low)} to {_percent(high)})</span>'
        f'<span class="bar {kind}"><i style="width: {100 * share:.1f}%"></i></span>'
        for kind, side in (("forgotten", forget), ("unseen", unseen))
        if side is not None
        for share, (low, high) in [side]
    )


def _technical(receipt: Receipt) -> list[tuple[str, str]]:
    r = receipt.content.as_json()
    method = r["method"]
    rows = [
        (
            "Ticket",
            f"<code>{_text(r['ticket']['id'])}</code> in federation <code>{_text(r['federation']['id'])}</code>",
        ),
        ("Method", _text(f"{method['name']}{_strength(method)}")),
    ]
    rows += [
        (f"Model {m['version']}, {stage}", f"<code>{_text(m['digest'])}</code>")
        for stage in _STAGES
        if (m := r["models"][stage]) is not None
    ]
    rows.append(("Audit log", f"line {r['audit']['line']}, <code>{_text(r['audit']['hash'])}</code>"))
    rows.append(("Signed with the key", f"<code>{_text(receipt.key_fingerprint)}</code>"))
    return rows


def _strength(method: Mapping[str, Any]) -> str:
    """PUF's rate, epochs and scale; other methods have none."""
    if method["kappa"] is None and method["eta_u"] is None:
        return ""
    rate = f"kappa {method['kappa']:g}" if method["kappa"] is not None else f"eta_u {method['eta_u']:g}"
    return f", {rate}, {_counted(method['epochs'], 'epoch')}, update scaled by {method['scale']:g}"


def _facts(rows: list[tuple[str, str]]) -> str:
    return '<table class="facts">' + "".join(f"<tr><th>{_text(k)}</th><td>{v}</td></tr>" for k, v in rows) + "</table>"


def _who(ticket: Mapping[str, Any]) -> str:
    return (
        f"{ticket['forget_samples']} samples of {ticket['client']}"
        if ticket["scope"] == "samples"
        else ticket["client"]
    )


def _text(value: Any) -> str:
    return escape(str(value))


def _day(date: str | None) -> str:
    return datetime.fromisoformat(date).strftime("%-d %B %Y") if date else "an unknown day"


def _percent(share: float) -> str:
    return f"{_number(share)} %"


def _number(share: float) -> str:
    return f"{100 * share:.0f}"


def _megabytes(count: int) -> str:
    return f"{count / 1e6:.1f} MB" if count >= 1e5 else f"{count / 1e3:.1f} kB"


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
