"""Results of the demo: scores, costs, table, picture, and the check of the receipt."""

from __future__ import annotations

import json
import subprocess
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from puf_common.errors import PufError
from puf_common.receipts import signed_receipt
from puf_common.receipts.ranks import class_histogram, compare_by_class
from puf_common.receipts.verdict import NOT_MEASURED
from puf_common.tensors.model_file import read_payload
from puf_lab.demo.conclusion import Stage, StageScores, conclude, markdown, rich_table
from puf_lab.federations.processes import program
from puf_lab.reporting.provenance import commit
from puf_lab.spec.federation import FederationSpec

if TYPE_CHECKING:
    from puf_lab.evaluation.evaluator import ModelOutputs

Points = list[tuple[int, float, float]]


HOW = {"regular": "PUF with adaptive strength", "special": "PUF-Special"}


@dataclass
class DemoResult:
    """The content of result.json."""

    setting: dict[str, Any]
    target: str
    mode: str
    rows: dict[Stage, StageScores] = field(default_factory=dict)
    curve: Points = field(default_factory=list)
    natural_curve: Points = field(default_factory=list)
    forgotten_at: int = 0
    recovery_rounds: int = 0
    recovered: bool | None = None
    costs: dict[str, dict[str, int]] = field(default_factory=dict)
    # In the words of the receipt; "not measured" if there is none.
    verdict: str = NOT_MEASURED
    reason: str = ""
    # The verdict on the receipt, which compares with unseen data instead of a retrained model.
    receipt_verdict: str = NOT_MEASURED
    seconds: float = 0.0


def described(spec: FederationSpec) -> dict[str, Any]:
    """The federation as result.json states it."""
    return {
        "title": spec.title,
        "data": spec.data.name,
        "data_options": spec.data_options()["data_option"],
        "partition": spec.data.partition,
        "clients": spec.clients,
        "rounds": spec.rounds,
        "model": spec.model.name,
        "recipe": spec.recipe.model_dump(mode="json"),
        "commit": commit(),
    }


def measure(out: Path, spec: FederationSpec, target: int, result: DemoResult) -> None:
    """Evaluates the exported models and fills in scores, curves and conclusion."""
    from puf_lab.evaluation.evaluator import Evaluator
    from puf_lab.evaluation.metrics import compute

    evaluator = Evaluator(spec)
    models = {int(path.stem): path for path in sorted((out / "models").iterdir())}
    natural = {int(path.stem): path for path in sorted((out / "natural-models").iterdir())}
    stages: dict[Stage, Path] = {
        "original": models[spec.rounds],
        "unlearned": models[result.forgotten_at],
        "recovered": models[max(models)],
        "retrained": out / "retrained.safetensors",
        "retrained again": out / "retrained-again.safetensors",
        "natural": natural[max(natural)],
    }
    for stage, path in stages.items():
        outputs = evaluator.outputs(read_payload(path), [target])
        figures = compute(outputs, ("test", "forget", "song", "yeom"))
        result.rows[stage] = StageScores(**figures, ranks=_ranks(outputs))
        unseen = len(outputs.test.scores)
    for curve, paths in ((result.curve, models), (result.natural_curve, natural)):
        curve += [(v, *evaluator.accuracies(read_payload(path), [target])) for v, path in paths.items()]
    conclusion = conclude(result.rows, samples=evaluator.clients[target].samples, unseen=unseen)
    result.verdict, result.reason = conclusion.verdict or NOT_MEASURED, conclusion.sentence
    (receipt,) = out.glob("receipt-*.json")
    measured = signed_receipt.read(receipt.read_bytes()).content.measured_by_client
    result.receipt_verdict = measured.verdict or NOT_MEASURED


def _ranks(outputs: ModelOutputs) -> float | None:
    """The share of pairs of the same class, in per cent, in which the forgotten sample has the higher confidence."""
    unseen = class_histogram(outputs.test.confidences, outputs.test.labels)
    found = compare_by_class(outputs.forget.confidences, outputs.forget.labels, unseen)
    return None if found is None else 100 * found.auc


def print_report(out: Path, result: DemoResult, console: Console) -> None:
    """Prints table, costs and verdict. Writes picture, result.json and table.md."""
    from puf_lab.demo.picture import Curve, accuracy_curve

    picture = out / "accuracy.png"
    accuracy_curve(
        picture,
        curve=Curve(*zip(*result.curve, strict=True)),
        forgotten_at=result.forgotten_at,
        retrained_test=result.rows["retrained"].test,
        retrained_forget=result.rows["retrained"].forget,
        natural=Curve(*zip(*result.natural_curve, strict=True)),
        title=f"A federation forgets {result.target}",
        subtitle=f"{HOW[result.mode]}, {result.setting['clients']} clients, digits with pixel noise",
    )
    console.print(rich_table(result.rows, title=f"what each model knows about {result.target} (per cent)"))
    puf, retrain = result.costs["puf"], result.costs["retrain"]
    times = retrain["bytes"] / puf["bytes"]
    console.print(f"forgetting and recovery: {_cost(puf)}")
    console.print(f"retraining from scratch: {_cost(retrain)} ({times:.1f} times the bytes)\n")
    console.print(f"[bold]Verdict: {result.verdict}.[/bold] {result.reason}")
    console.print(
        f"The receipt says: {result.receipt_verdict}. It compares with unseen data, without a retrained model."
    )
    (out / "result.json").write_text(json.dumps(asdict(result), indent=1) + "\n")
    (out / "table.md").write_text(markdown(result.rows) + "\n")
    console.print(f"\npicture: {picture}\nfigures for programs: {out / 'result.json'}\n({result.seconds:.0f} s in all)")


def _cost(cost: dict[str, int]) -> str:
    return f"{cost['rounds']} rounds, {cost['bytes'] / 1e6:.1f} MB on the wire, {cost['samples']:,} samples trained"


def verify_receipt(out: Path, console: Console) -> None:
    """Checks that the receipt verifies against the pinned key, and that a copy with one changed byte does not."""
    (receipt,) = out.glob("receipt-*.json")
    forged = out / f"changed-{receipt.name}"
    content = bytearray(receipt.read_bytes())
    # One digit of a figure in the middle is changed: a change that a forger could want.
    place = next(i for i in range(len(content) // 2, len(content)) if 0x30 <= content[i] <= 0x38)
    content[place] += 1
    forged.write_bytes(content)
    console.print("\n[bold]The receipt[/bold]")
    for path, expected in ((receipt, 0), (forged, 1)):
        command = [program("puf-client"), "verify", str(path), "--state", str(out / "clients")]
        done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
        console.print(f"$ puf-client verify {path.name}\n{done.stdout.strip() or done.stderr.strip()}", markup=False)
        if done.returncode != expected:
            raise PufError(f"verifying {path.name} ended with code {done.returncode}, expected was {expected}")
    console.print(f"as a page for people: {receipt.with_suffix('.html')}")
