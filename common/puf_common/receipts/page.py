"""A receipt as one HTML page for readers who are not engineers. It is self-contained: nothing is fetched, no script runs."""

from __future__ import annotations

from datetime import datetime
from functools import cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template

from puf_common.files.private import write_over
from puf_common.receipts.content import GapFacts, MeasuredByClient, MethodFacts, ReceiptContent
from puf_common.receipts.evidence import STATEMENT, Finding, Verdict
from puf_common.receipts.gap import left_in_words
from puf_common.receipts.signed_receipt import Receipt, read
from puf_common.receipts.verdict import NOT_MEASURED

# Stage, its name in the table, its name in a sentence.
_STAGES = (
    ("before", "Before", "before"),
    ("unlearned", "Right after unlearning", "right after unlearning"),
    ("recovered", "The model in use now", "now"),
)
# Only "forgotten" is green. Findings are the verdicts of version 0.1, which had no model before to compare with.
_TONES: dict[str, str] = {Verdict.FORGOTTEN: "good", Verdict.STILL_KNOWN: "bad", Finding.NOT_LIKE_UNSEEN: "bad"}
_FINDINGS: dict[str, str] = {
    Finding.LIKE_UNSEEN: "In the client's tests the model treats the forgotten data like data it never saw. Whether it "
    "did so already before the request was not judged.",
    Finding.TOO_FEW: "The client has too little data to tell whether the model still knows it.",
}
_METHODS = {
    "puf-regular": "the client's last contribution entered the model with its sign reversed, while the others trained on",
    "puf-auto": "in several rounds the client's contribution entered the model with its sign reversed, each time as strongly as "
    "the client's measurement required, while the others trained on",
    "puf-special": "the client's last contribution entered the model with its sign reversed, without the others; anyone with "
    "the models before and right after can compute that contribution",
    "reset": "no other client was left, so the model went back to its initial state, which had learned from no client",
    "retrain": "the model was trained anew from its initial state, without this data",
    "natural": "training went on without this data; nothing was taken out of the model",
    "not": "the first layer of the model was negated, and the others trained on",
    "federaser": "the earlier rounds were repeated without this data, with the others' contributions corrected",
    "none": "nothing of it had ever entered a model, so no model had to change",
}


# How recovery ended. Receipts of version 0.1 state only whether the model recovered.
_RECOVERED = {
    "equal": "the model is as good for the others as before",
    "plateau": "the model is as good for the others as the remaining data allow: further rounds did not improve it",
    "limit": "the model did not get back to its earlier quality within the allowed rounds",
    "time": "the model did not get back to its earlier quality within the allowed days",
    "no client": "no other client was left to train",
}
_RECOVERED_BEFORE = {
    True: "the model is as good for the others as before",
    None: "no client could measure whether the model is as good as before",
    False: "the model did not get back to its earlier quality within the allowed rounds",
}


def write(file: bytes, directory: Path) -> list[Path]:
    """Writes a receipt and its page to receipt-<ticket>.json and .html in the directory. The receipt is checked first."""
    receipt = read(file)
    directory.mkdir(parents=True, exist_ok=True)
    name = "".join(c for c in receipt.ticket if c.isalnum() or c in "-_")[:80]
    json_path, html_path = (directory / f"receipt-{name}.{kind}" for kind in ("json", "html"))
    write_over(json_path, file, mode=0o644)
    write_over(html_path, page(receipt).encode(), mode=0o644)
    return [json_path, html_path]


def page(receipt: Receipt) -> str:
    """The HTML of a receipt. Every text from the receipt is escaped."""
    r = receipt.content
    scores = [(r.measured_by_others.of(stage), moment) for stage, _, moment in _STAGES]
    costs = (r.costs.unlearning, r.costs.recovery)
    return _template().render(
        r=r,
        ticket=r.ticket,
        mine=r.measured_by_client,
        others=[(score, moment) for score, moment in scores if score is not None],
        stages=_STAGES,
        verdict=r.measured_by_client.verdict or NOT_MEASURED,
        tone=_TONES.get(r.measured_by_client.verdict or "", "open"),
        reason=_reason(r.measured_by_client),
        method=_explained(r.method.name),
        strength=_strength(r.method),
        copies=_copies(r),
        recovered=_RECOVERED.get(r.rounds.ended or "") or _RECOVERED_BEFORE[r.rounds.recovered],
        left=_left(r.measured_by_client.fraction_left),
        effort_bytes=sum(cost.bytes_to_clients + cost.bytes_from_clients for cost in costs),
        statement=STATEMENT,
        fingerprint=receipt.key_fingerprint,
    )


@cache
def _template() -> Template:
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    environment.filters |= {"day": _day, "percent": _percent, "counted": _counted, "size": _size}
    return environment.get_template("receipt.html")


def _left(left: GapFacts | None) -> str:
    return left_in_words(left.value, left.error) if left else ""


def _reason(measured: MeasuredByClient) -> str:
    """The reason of the verdict; for receipts of version 0.1, what its finding means."""
    if measured.comparison is not None:
        return measured.comparison.reason
    if measured.verdict is None:
        return "The client did not compare the models with unseen data."
    if measured.verdict == Finding.NOT_LIKE_UNSEEN:
        return f"In the client's tests the model {_difference(measured)}."
    return _FINDINGS.get(measured.verdict, "This is the result of the client's tests.")


def _difference(measured: MeasuredByClient) -> str:
    """How the forgotten data differs from unseen data, by the attack with the largest gap."""
    model = next((m for m in (measured.recovered, measured.unlearned) if m is not None and m.verdict), None)
    attacks = (model.yeom, model.song) if model is not None else ()
    gaps = (a.forget.share - a.holdout.share for a in attacks if a and a.verdict == Finding.NOT_LIKE_UNSEEN)
    if max(gaps, key=abs, default=0.0) > 0:
        return "still treats the forgotten data more like its training data than like data it never saw"
    return "does worse on the forgotten data than on data it never saw: that it was forgotten shows"


def _explained(method: str) -> str:
    name, _, reason = method.partition(" (")
    return _METHODS.get(name, name) + (f" ({reason}" if reason else "")


def _copies(r: ReceiptContent) -> list[str]:
    """Exports and backups, in few words however many there are. The signed file lists every export."""
    found = [f"model {e.version} was exported on {_day(e.at)}" for e in r.exports]
    if len(found) > 3:
        days = sorted(e.at or "" for e in r.exports)
        first, last = _day(days[0]), _day(days[-1])
        when = f"on {first}" if first == last else f"from {first} to {last}"
        found = [f"{len({e.version for e in r.exports})} such models were exported {when}"]
    backups = [(_counted(len(b.versions), "such model"), _day(b.at)) for b in r.backups]
    return found + [f"a backup with {models} was made on {day}" for models, day in backups]


def _strength(method: MethodFacts) -> str:
    """PUF's rate, epochs and scale; empty for other methods."""
    if method.doses:
        doses = ", ".join(f"{dose.kappa:.3g} in round {dose.round}" for dose in method.doses)
        return f", adaptive strength, {_counted(method.epochs or 0, 'epoch')} in each round, kappa {doses}"
    if method.kappa is None and method.eta_u is None:
        return ""
    rate = f"kappa {method.kappa:g}" if method.kappa is not None else f"eta_u {method.eta_u:g}"
    why = f"; adaptive strength was not possible: {method.fixed_because}" if method.fixed_because else ""
    return f", {rate}, {_counted(method.epochs or 0, 'epoch')}, update scaled by {method.scale:g}{why}"


def _day(date: str | None) -> str:
    return datetime.fromisoformat(date).strftime("%-d %B %Y") if date else "an unknown day"


def _percent(share: float) -> str:
    return f"{100 * share:.0f}"


def _size(count: int) -> str:
    return f"{count / 1e6:.1f} MB" if count >= 1e5 else f"{count / 1e3:.1f} kB"


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
