"""`puf-lab demo`: a federation of real processes learns, one member asks to be forgotten, and the federation forgets it.

Beside it run the two references that make the result mean something: the federation that never had the member, trained
from scratch, and the one that lost the member and did nothing about it.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from puf_common.errors import PufError, UsageError
from puf_common.tensors.model_file import read_payload
from puf_common.v1 import federation_pb2 as fed
from puf_common.v1 import tickets_pb2 as tk
from puf_lab.demo.outcome import Measured, Stage, markdown, rich_table, verdict
from puf_lab.experiments.setting import DEMO, Setting, client_name
from puf_lab.federations.processes import (
    Process,
    ServerProcess,
    fleet,
    init_server,
    program,
    unlearn_command,
    wait_until,
)

__all__ = ["run_demo"]

_PHASE_SECONDS = 600.0
# Says that a folder is a demo's and may be deleted by the next one.
_MARK = ".puf-demo"


@dataclass
class Story:
    """Everything the demo finds out, as it ends up in result.json."""

    setting: dict[str, Any]
    target: str
    mode: str
    rows: dict[Stage, Measured] = field(default_factory=dict)
    curve: list[tuple[int, float, float]] = field(default_factory=list)
    natural_curve: list[tuple[int, float, float]] = field(default_factory=list)
    forgotten_at: int = 0
    recovery_rounds: int = 0
    recovered: bool | None = None
    costs: dict[str, dict[str, int]] = field(default_factory=dict)
    verdict: str = ""
    outcome: str = ""
    seconds: float = 0.0


class Watch:
    """A bar per phase, fed by the operator's port; plain lines where nobody watches."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._progress = Progress(
            TextColumn("{task.description:<34}"),
            BarColumn(bar_width=36),
            TextColumn("{task.fields[note]}"),
            TimeElapsedColumn(),
            console=console,
            disable=not console.is_terminal,
        )

    def __enter__(self) -> Watch:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    @contextmanager
    def phase(self, text: str, total: int | None) -> Iterator[Any]:
        """Yields a function (done, note) that moves the bar."""
        task = self._progress.add_task(text, total=total, note="")
        if not self.console.is_terminal:
            self.console.print(f"{text} ...")
        started = time.monotonic()

        def show(done: int, note: str = "") -> None:
            self._progress.update(task, completed=done, note=note)

        yield show
        self._progress.update(task, completed=total or 1, total=total or 1, note="done")
        if not self.console.is_terminal:
            self.console.print(f"{text}: done in {time.monotonic() - started:.1f} s")


def run_demo(out: Path, *, target: int = 3, mode: str = "regular", setting: Setting = DEMO) -> int:
    console = Console(highlight=False)
    started = time.monotonic()
    _make_room(out)
    console.print(
        f"{setting.clients} clients learn to read noisy digits for {setting.rounds} rounds; "
        f"then {client_name(target)} asks to be forgotten (PUF-{mode.capitalize()}).\n"
    )
    story = Story(setting=_described(setting), target=client_name(target), mode=mode)
    with Watch(console) as watch:
        told = _federation(out, setting, target, mode, story, watch)
        _natural(out, setting, target, story, watch)
        _retrained(out, setting, target, story, watch)
        with watch.phase("measuring what each model knows", None):
            _measure(out, setting, target, story)
    console.print(f"\n[bold]What {story.target} saw on its own terminal[/bold]", told.strip(), sep="\n")
    story.seconds = round(time.monotonic() - started, 1)
    _report(out, story, console)
    _prove(out, console)
    return 0


def _make_room(out: Path) -> None:
    """An empty folder; what is deleted for it is an earlier demo and nothing else."""
    if out.exists() and any(out.iterdir()) and not (out / _MARK).exists():
        raise UsageError(f"{out} holds something that is not a demo's: choose another --out, or empty it yourself")
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    (out / _MARK).touch()


def _federation(out: Path, setting: Setting, target: int, mode: str, story: Story, watch: Watch) -> str:
    """Trains with everybody, then one member leaves by its own command line. Returns what that command printed."""
    state, clients, logs = out / "federation", out / "clients", out / "logs"
    init_server(state, setting, clients=setting.clients)
    with ExitStack() as stack:
        server = stack.enter_context(ServerProcess(state, logs / "server.log"))
        assert isinstance(server, ServerProcess)
        crew = stack.enter_context(fleet(setting, server, clients, logs / "fleet.log"))
        with watch.phase("training together", setting.rounds) as show:
            _train(server, crew, show)
        _export_all(server, out / "models")
        # A copy of the state, taken while nobody writes, is where "no unlearning" will go on from. The clients keep
        # trying and re-attach: a server may be restarted under its federation.
        server.end()
        shutil.copytree(state, out / "natural", ignore=shutil.ignore_patterns("lock"))
        ports = (f"127.0.0.1:{server.port}", f"127.0.0.1:{server.operator_port}")
        server = stack.enter_context(ServerProcess(state, logs / "server.log", listen=ports[0], operator=ports[1]))
        assert isinstance(server, ServerProcess)
        with watch.phase(f"{client_name(target)} asks to be forgotten", None) as show:
            command = unlearn_command(setting, server, clients, target, "--mode", mode)
            leaving = stack.enter_context(Process(command, logs / "unlearn.log", env={"COLUMNS": "120"}))
            _follow(server, leaving, crew, show)
        ticket = server.control.tickets()[0]
        _export_all(server, out / "models")
        # The server was restarted right before, so it has counted nothing but forgetting: measurements before, the
        # unlearning round, recovery, and the models that the leaver fetched to see for itself.
        story.costs["puf"] = _cost(server, {"unlearn", "recover"})
        server.control.stop()
        crew.wait(30)
    story.forgotten_at = ticket.applied_round
    story.recovery_rounds = ticket.recovery_rounds
    story.recovered = ticket.recovered if ticket.HasField("recovered") else None
    return (logs / "unlearn.log").read_text()


def _prove(out: Path, console: Console) -> None:
    """The receipt verifies against the key that the leaver pinned; the same with one changed byte does not."""
    (receipt,) = out.glob("receipt-*.json")
    forged = out / f"changed-{receipt.name}"
    content = bytearray(receipt.read_bytes())
    # One digit of a figure in the middle: the kind of byte somebody would want to change.
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


def _natural(out: Path, setting: Setting, target: int, story: Story, watch: Watch) -> None:
    """The same federation from the same moment, where the member is gone and nothing is done about it."""
    rounds = 1 + story.recovery_rounds
    logs = out / "logs"
    with ExitStack() as stack:
        server = stack.enter_context(ServerProcess(out / "natural", logs / "natural-server.log"))
        assert isinstance(server, ServerProcess)
        crew = stack.enter_context(
            fleet(setting, server, out / "natural-clients", logs / "natural-fleet.log", without=[target])
        )
        with watch.phase("reference: no unlearning", rounds) as show:
            alive = setting.clients - 1
            wait_until(lambda: server.control.status().clients_alive == alive, _PHASE_SECONDS, server, crew)
            server.control.extend(rounds)
            _train(server, crew, show, done_before=setting.rounds)
        _export_all(server, out / "natural-models", since=setting.rounds)
        server.control.stop()
        crew.wait(30)


def _retrained(out: Path, setting: Setting, target: int, story: Story, watch: Watch) -> None:
    """The federation that never had the member."""
    logs = out / "logs"
    first = out / "models" / "0000.safetensors"
    init_server(out / "retrained", setting, clients=setting.clients - 1, more=["--model-file", str(first)])
    with ExitStack() as stack:
        server = stack.enter_context(ServerProcess(out / "retrained", logs / "retrained-server.log"))
        assert isinstance(server, ServerProcess)
        crew = stack.enter_context(
            fleet(setting, server, out / "retrained-clients", logs / "retrained-fleet.log", without=[target])
        )
        with watch.phase("reference: retraining from scratch", setting.rounds) as show:
            _train(server, crew, show)
        server.control.export(out / "retrained.safetensors")
        story.costs["retrain"] = _cost(server, {"train"})
        server.control.stop()
        crew.wait(30)


def _train(server: ServerProcess, crew: Process, show: Any, done_before: int = 0) -> None:
    def idle() -> bool:
        status = server.control.status()
        show(status.rounds_trained - done_before, f"{status.clients_alive} clients")
        return status.position.phase == fed.PHASE_IDLE and status.rounds_trained >= status.rounds_planned

    wait_until(idle, _PHASE_SECONDS, server, crew, poll=0.1)


def _follow(server: ServerProcess, leaving: Process, crew: Process, show: Any) -> None:
    def left() -> bool:
        tickets = server.control.tickets()
        if tickets:
            state = tk.TicketState.Name(tickets[0].state).removeprefix("TICKET_STATE_").lower()
            show(0, f"{state}, {tickets[0].recovery_rounds} recovery rounds")
        return leaving.code is not None

    wait_until(left, _PHASE_SECONDS, server, crew, poll=0.1)
    if leaving.code != 0:
        raise PufError(f"puf-client --unlearn ended with code {leaving.code}:\n{leaving.tail(10)}")


def _export_all(server: ServerProcess, folder: Path, since: int = 0) -> None:
    """Every version there is, by number, unless it was exported before."""
    folder.mkdir(exist_ok=True)
    for model in server.control.models():
        path = folder / f"{model.version:04d}.safetensors"
        if model.status != "deleted" and model.version >= since and not path.exists():
            server.control.export(path, model.version, unready=True)


def _cost(server: ServerProcess, kinds: set[str]) -> dict[str, int]:
    """Rounds and samples of these kinds, and all tensor bytes the server has moved since it started."""
    status = server.control.status()
    rounds = server.control.rounds(limit=10_000)
    chosen = [r for r in rounds if r.kind in kinds and r.phase == "committed"]
    return {
        "rounds": len(chosen),
        "bytes": status.bytes_sent + status.bytes_received,
        "samples": sum(r.samples_processed for r in chosen),
    }


def _measure(out: Path, setting: Setting, target: int, story: Story) -> None:
    from puf_lab.evaluation.evaluator import Evaluator

    evaluator = Evaluator(setting)
    models = {int(path.stem): path for path in sorted((out / "models").iterdir())}
    natural = {int(path.stem): path for path in sorted((out / "natural-models").iterdir())}
    before = setting.rounds
    stages: dict[Stage, Path] = {
        "original": models[before],
        "unlearned": models[before + 1],
        "recovered": models[max(models)],
        "retrained": out / "retrained.safetensors",
        "natural": natural[max(natural)],
    }
    for stage, path in stages.items():
        story.rows[stage] = evaluator.measure(read_payload(path), [target])
    for curve, paths in ((story.curve, models), (story.natural_curve, natural)):
        curve += [(v, *evaluator.accuracies(read_payload(path), [target])) for v, path in paths.items()]
    judged = verdict(story.rows, samples=evaluator.samples(target))
    story.verdict, story.outcome = judged.sentence, judged.outcome.value


def _report(out: Path, story: Story, console: Console) -> None:
    from puf_lab.demo.picture import Curve, accuracy_curve

    def curve(points: list[tuple[int, float, float]]) -> Curve:
        rounds, test, forget = zip(*points, strict=True)
        return Curve(list(rounds), list(test), list(forget))

    picture = out / "accuracy.png"
    accuracy_curve(
        picture,
        curve=curve(story.curve),
        forgotten_at=story.forgotten_at,
        retrained_test=story.rows["retrained"].test,
        retrained_forget=story.rows["retrained"].forget,
        natural=curve(story.natural_curve),
        title=f"A federation forgets {story.target}",
        subtitle=f"PUF-{story.mode.capitalize()}, {story.setting['clients']} clients, digits with pixel noise",
    )
    console.print(rich_table(story.rows, title=f"what each model knows about {story.target} (per cent)"))
    puf, retrain = story.costs["puf"], story.costs["retrain"]
    console.print(
        f"forgetting and recovery: {puf['rounds']} rounds, {_mb(puf['bytes'])} on the wire, "
        f"{puf['samples']:,} samples trained\n"
        f"retraining from scratch: {retrain['rounds']} rounds, {_mb(retrain['bytes'])} on the wire, "
        f"{retrain['samples']:,} samples trained "
        f"({retrain['bytes'] / puf['bytes']:.1f} times the bytes)\n"
    )
    console.print(f"[bold]Verdict:[/bold] {story.verdict}")
    (out / "result.json").write_text(json.dumps(asdict(story), indent=1) + "\n")
    (out / "table.md").write_text(markdown(story.rows) + "\n")
    console.print(f"\npicture: {picture}\nfigures for programs: {out / 'result.json'}\n({story.seconds:.0f} s in all)")


def _described(setting: Setting) -> dict[str, Any]:
    return {
        "title": setting.title,
        "data": setting.data,
        "data_options": setting.data_options,
        "partition": setting.partition,
        "clients": setting.clients,
        "rounds": setting.rounds,
        "model": setting.model,
        "recipe": setting.recipe.model_dump(mode="json"),
        "commit": _commit(),
    }


def _commit() -> str:
    try:
        done = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False)  # noqa: S607
    except OSError:
        return ""
    return done.stdout.strip()


def _mb(count: int) -> str:
    return f"{count / 1e6:.1f} MB"
