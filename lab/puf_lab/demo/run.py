"""`puf-lab demo`: a federation of processes trains, one client asks to be forgotten, and the federation forgets it.

Three references make the result meaningful: a federation that never had the client, trained from scratch; the same with
another seed, which shows how much two such models differ; and one that lost the client without unlearning.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from puf_common.errors import PufError, UsageError
from puf_common.tensors.model_file import save
from puf_common.v1 import federation_pb2 as fed
from puf_common.v1 import tickets_pb2 as tk
from puf_lab.demo.progress import PhaseProgress, Show
from puf_lab.demo.report import HOW, DemoResult, described, measure, print_report, verify_receipt
from puf_lab.federations.processes import (
    DashboardProcess,
    Process,
    ServerProcess,
    fleet,
    init_server,
    unlearn_command,
    wait_until,
)
from puf_lab.reporting.terminal import new_console
from puf_lab.spec.federation import FederationSpec, client_name
from puf_lab.spec.settings_files import load_experiment

_PHASE_SECONDS = 600.0
# Marks a directory as a demo's. The next demo may delete it.
_MARK = ".puf-demo"


@dataclass
class Demo:
    """What the phases share: directory, federation, target and result."""

    out: Path
    spec: FederationSpec
    target: int
    result: DemoResult
    progress: PhaseProgress

    def log(self, name: str) -> Path:
        return self.out / "logs" / f"{name}.log"


def run_demo(out: Path, *, target: int = 3, mode: str = "regular") -> int:
    """Runs all phases, prints the report and checks the receipt."""
    spec = load_experiment("demo").federation.model_copy(update={"title": "demo"})
    if not 0 <= target < spec.clients:
        raise UsageError(f"--target must be a number from 0 to {spec.clients - 1}")
    console = new_console()
    started = time.monotonic()
    _empty(out)
    console.print(
        f"{spec.clients} clients learn to read noisy digits for {spec.rounds} rounds; "
        f"then {client_name(target)} asks to be forgotten ({HOW[mode]}).\n"
    )
    result = DemoResult(setting=described(spec), target=client_name(target), mode=mode)
    with PhaseProgress(console) as progress:
        demo = Demo(out, spec, target, result, progress)
        output = _forget(demo)
        _natural(demo)
        _retrain(demo)
        _retrain_again(demo)
        with progress.phase("measuring what each model knows", None):
            measure(out, spec, target, result)
    console.print(f"\n[bold]Output of {result.target}'s command[/bold]", output.strip(), sep="\n")
    result.seconds = round(time.monotonic() - started, 1)
    print_report(out, result, console)
    verify_receipt(out, console)
    return 0


def _empty(out: Path) -> None:
    """Makes an empty directory. Only the directory of an earlier demo is deleted."""
    if out.exists() and any(out.iterdir()) and not (out / _MARK).exists():
        raise UsageError(f"{out} holds something that is not a demo's: choose another --out, or empty it yourself")
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    (out / _MARK).touch()


def _forget(demo: Demo) -> str:
    """Trains with all clients, then one asks to be forgotten. Returns the output of that client's command."""
    out, spec, name = demo.out, demo.spec, client_name(demo.target)
    state, clients = out / "federation", out / "clients"
    init_server(state, spec, clients=spec.clients)
    with ExitStack() as stack:
        server = stack.enter_context(ServerProcess(state, demo.log("server")))
        fleet_process = stack.enter_context(fleet(spec, server, clients, demo.log("fleet")))
        if find_spec("starlette"):
            shown = stack.enter_context(DashboardProcess(state, demo.log("dashboard")))
            demo.progress.console.print(f"dashboard, while this federation runs: {shown.url}/\n")
        with demo.progress.phase("training together", spec.rounds) as show:
            _train(server, fleet_process, show)
        _export_all(server, out / "models")
        # The reference without unlearning continues from a copy of the state, taken while the server is down. The
        # clients retry and attach again when the server is back.
        server.end()
        shutil.copytree(state, out / "natural", ignore=shutil.ignore_patterns("lock"))
        listen, operator = (f"127.0.0.1:{port}" for port in (server.port, server.operator_port))
        server = stack.enter_context(ServerProcess(state, demo.log("server"), listen=listen, operator=operator))
        with demo.progress.phase(f"{name} asks to be forgotten", None) as show:
            command = unlearn_command(spec, server, clients, demo.target, "--mode", demo.result.mode)
            request = stack.enter_context(Process(command, demo.log("unlearn"), env={"COLUMNS": "120"}))
            _follow(server, request, fleet_process, show)
        ticket = server.control.tickets()[0]
        _export_all(server, out / "models")
        # The server counts bytes since its restart: the measurements before, the unlearning round, recovery, and the
        # models that the target fetched to measure them.
        demo.result.costs["puf"] = _cost(server, {"unlearn", "recover"})
        server.control.stop()
        fleet_process.wait(30)
    demo.result.forgotten_at = ticket.applied_round
    demo.result.recovery_rounds = ticket.recovery_rounds
    demo.result.recovered = ticket.recovered if ticket.HasField("recovered") else None
    return demo.log("unlearn").read_text()


@contextmanager
def _reference(demo: Demo, name: str, without: Collection[int]) -> Iterator[tuple[ServerProcess, Process]]:
    """Server and clients of a reference federation. They stop when the block ends."""
    with ExitStack() as stack:
        server = stack.enter_context(ServerProcess(demo.out / name, demo.log(f"{name}-server")))
        clients = demo.out / f"{name}-clients"
        fleet_process = stack.enter_context(
            fleet(demo.spec, server, clients, demo.log(f"{name}-fleet"), without=without)
        )
        yield server, fleet_process
        server.control.stop()
        fleet_process.wait(30)


def _natural(demo: Demo) -> None:
    """The same federation from the same state, without the client and without unlearning."""
    rounds = demo.result.forgotten_at - demo.spec.rounds + demo.result.recovery_rounds
    alive = demo.spec.clients - 1
    with _reference(demo, "natural", [demo.target]) as (server, fleet_process):
        with demo.progress.phase("reference: no unlearning", rounds) as show:
            wait_until(lambda: server.control.status().clients_alive == alive, _PHASE_SECONDS, server, fleet_process)
            server.control.extend(rounds)
            _train(server, fleet_process, show, done_before=demo.spec.rounds)
        _export_all(server, demo.out / "natural-models", since=demo.spec.rounds)


def _retrain(demo: Demo) -> None:
    """A federation that never had the client, from the same initial model."""
    first = demo.out / "models" / "0000.safetensors"
    init_server(demo.out / "retrained", demo.spec, clients=demo.spec.clients - 1, more=["--model-file", str(first)])
    with _reference(demo, "retrained", [demo.target]) as (server, fleet_process):
        with demo.progress.phase("reference: retraining from scratch", demo.spec.rounds) as show:
            _train(server, fleet_process, show)
        server.control.export(demo.out / "retrained.safetensors")
        demo.result.costs["retrain"] = _cost(server, {"train"})


def _retrain_again(demo: Demo) -> None:
    """The same retraining with another training seed, from the same initial model. It runs in this process."""
    from puf_lab.federations.in_process import InProcessFederation

    recipe = demo.spec.recipe.model_copy(update={"seed": demo.spec.recipe.seed + 1})
    spec, directory = demo.spec.model_copy(update={"recipe": recipe}), demo.out / "retrained-again"
    first = str(demo.out / "models" / "0000.safetensors")
    # Clients in this process send no heartbeats.
    alone = ["--model-file", first, "--plan-absent-seconds", "1e9", "--plan-heartbeat-seconds", "5"]
    directory.mkdir()
    init_server(directory / "server", spec, clients=spec.clients - 1, more=alone)
    with (
        demo.progress.phase("reference: retraining, another seed", spec.rounds) as show,
        InProcessFederation(spec, directory, without=[demo.target]) as federation,
    ):
        federation.train(lambda _: show(federation.state.trained, "in this process"))
        save(demo.out / "retrained-again.safetensors", federation.engine.manifest, federation.payload(), {})


def _train(server: ServerProcess, fleet_process: Process, show: Show, done_before: int = 0) -> None:
    def idle() -> bool:
        status = server.control.status()
        show(status.rounds_trained - done_before, f"{status.clients_alive} clients")
        return status.position.phase == fed.PHASE_IDLE and status.rounds_trained >= status.rounds_planned

    wait_until(idle, _PHASE_SECONDS, server, fleet_process, poll=0.1)


def _follow(server: ServerProcess, request: Process, fleet_process: Process, show: Show) -> None:
    """Waits until the target's command has ended."""

    def ended() -> bool:
        tickets = server.control.tickets()
        if tickets:
            state = tk.TicketState.Name(tickets[0].state).removeprefix("TICKET_STATE_").lower()
            show(0, f"{state}, {tickets[0].recovery_rounds} recovery rounds")
        return request.code is not None

    wait_until(ended, _PHASE_SECONDS, server, fleet_process, poll=0.1)
    if request.code != 0:
        raise PufError(f"puf-client --unlearn ended with code {request.code}:\n{request.tail(10)}")


def _export_all(server: ServerProcess, folder: Path, since: int = 0) -> None:
    """Exports every model version that is not in the folder yet."""
    folder.mkdir(exist_ok=True)
    for model in server.control.models():
        path = folder / f"{model.version:04d}.safetensors"
        if model.status != "deleted" and model.version >= since and not path.exists():
            server.control.export(path, model.version, unready=True)


def _cost(server: ServerProcess, kinds: set[str]) -> dict[str, int]:
    """Rounds and samples of these kinds, and all tensor bytes since the server's start."""
    status = server.control.status()
    chosen = [r for r in server.control.rounds(limit=10_000) if r.kind in kinds and r.phase == "committed"]
    return {
        "rounds": len(chosen),
        "bytes": status.bytes_sent + status.bytes_received,
        "samples": sum(r.samples_processed for r in chosen),
    }
