"""The client in Node.js: the commands of its README, what it declines, and the test vectors of receipts."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.e2e.federation import SECONDS, command
from tests.e2e.pasting import Terminal, commands
from tests.running import make_state, running, tiny_config

from puf_common.config.exit_codes import Exit
from puf_common.tensors.manifest import MODEL, Manifest, TensorSpec
from puf_common.v1 import federation_pb2 as fed
from puf_common.v1 import tickets_pb2 as tk
from puf_lab.federations.processes import Process, wait_until
from puf_server.cli.operator_client import OperatorClient
from puf_server.runtime.server import Server

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "node-client"
NODE = shutil.which("node") or ""

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(not NODE, reason="Node.js is not installed"),
    pytest.mark.skipif(
        not (EXAMPLE / "node_modules").exists(),
        reason="the packages of the Node.js client are not installed: run npm ci --ignore-scripts in examples/node-client",
    ),
]

SOFTMAX = Manifest((TensorSpec("weight", "f32", (3, 2)), TensorSpec("bias", "f32", (3,))))


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    """In a copy of the example, beside a copy of the contract."""
    shutil.copytree(ROOT / "protos", tmp_path / "protos")
    place = tmp_path / "examples" / "node-client"
    shutil.copytree(EXAMPLE, place, ignore=shutil.ignore_patterns("__pycache__", "node_modules", "federation"))
    (place / "node_modules").symlink_to(EXAMPLE / "node_modules")
    with ExitStack() as stack:
        yield Terminal(place, stack)


def test_every_command_of_the_readme_works(terminal: Terminal) -> None:
    first, *pasted = commands((EXAMPLE / "README.md").read_text())
    assert first == "npm ci --ignore-scripts"
    shown = {}
    for line in pasted:
        if line == "puf-server status":
            terminal.wait_for(fed.PHASE_IDLE)
        done = terminal.paste(line)
        if done is not None:
            assert done.code == Exit.OK, f"{line}\n{done.out}{done.err}"
            shown[line.rpartition(" --name")[0] or line] = done.out
        if line.startswith("node client.mjs forget"):
            worker = terminal.running.pop(next(line for line in terminal.running if line.startswith("node")))
            assert worker.wait(SECONDS) == Exit.FORGOTTEN
            _check_ticket(terminal.control)
    for process in terminal.running.values():
        assert process.wait(SECONDS) == Exit.OK
    assert "receipt.json is VALID: node-2 was forgotten by puf-regular" in shown["node client.mjs forget"]
    assert shown["node client.mjs verify"] == shown["node client.mjs forget"]
    _check_receipt(terminal)


def _check_ticket(control: OperatorClient) -> None:
    (ticket,) = control.tickets()
    assert ticket.state == tk.TICKET_STATE_COMPLETED
    assert ticket.scale < 0
    assert ticket.unlearned_samples == 266
    assert ticket.fixed_because == "the client's software or training loop cannot choose doses"
    assert ticket.score_before.accuracy > 0.5
    assert [m.version for m in ticket.measurements] == sorted(
        {ticket.version_before, ticket.version_unlearned, ticket.version_recovered}
    )
    rounds = {r.number: r for r in control.rounds(limit=100)}
    # All three clients took part in every round until the unlearning round.
    assert {rounds[n].received for n in range(1, ticket.applied_round + 1)} == {3}
    members = {c.name: c.status for c in control.clients()}
    assert members == {"py-0": "active", "py-1": "active", "node-2": "forgotten"}


def _check_receipt(terminal: Terminal) -> None:
    """Checks that PUF accepts the receipt that the client stored, and that the client refuses a changed one."""
    place = terminal.directory
    file = (place / "receipt.json").read_bytes()
    key = json.loads(file)["signature"]["public_key"]
    assert (place / "server-key.hex").read_text() == f"{key}\n"
    done = command(["puf-client", "verify", "receipt.json", "--key", key], env=terminal.env, cwd=place)
    assert done.code == Exit.OK, done.err
    (place / "receipt.json").write_bytes(file.replace(b"node-2", b"node-3"))
    done = command(["node", "client.mjs", "verify"], env=terminal.env, cwd=place)
    assert (done.code, done.err) == (Exit.FAILURE, "error: the receipt was changed after it was signed\n")


def test_it_gives_the_stated_result_for_every_test_vector() -> None:
    vectors = ROOT / "protos" / "vectors"
    index = json.loads((vectors / "vectors.json").read_text())
    expected = {v["file"]: v["result"] in ("valid", "spelling") for v in index["files"]}
    program = """
        import {readFileSync} from "node:fs";
        import {verifyReceipt} from "./receipt.mjs";
        const [, key, ...files] = process.argv;
        for (const file of files) {
          let valid = true;
          try { verifyReceipt(readFileSync(file), key); } catch { valid = false; }
          console.log(JSON.stringify([file, valid]));
        }
    """
    files = [str(vectors / name) for name in expected]
    done = command(["node", "--input-type=module", "-e", program, index["public_key"], *files], cwd=EXAMPLE)
    assert done.code == 0, done.err
    found = dict(json.loads(line) for line in done.out.splitlines())
    assert {Path(file).name: valid for file, valid in found.items()} == expected


def test_it_loads_every_file_of_the_contract() -> None:
    program = """
        import loader from "@grpc/proto-loader";
        for (const file of process.argv.slice(1)) loader.loadSync(file, {includeDirs: ["../../protos"]});
    """
    files = sorted(path.relative_to(ROOT / "protos").as_posix() for path in ROOT.glob("protos/puf/v1/*.proto"))
    done = command(["node", "--input-type=module", "-e", program, *files], cwd=EXAMPLE)
    assert (done.code, done.err) == (0, "")


def words(server: Server, place: Path, what: str, name: str) -> list[str]:
    data = place / f"{name}-{what}.csv"
    data.write_text("".join(f"{part},{i % 3},{i}.5,{-i}\n" for part in ("train", "holdout") for i in range(6)))
    where = ["--server", f"127.0.0.1:{server.port}", "--name", name, "--data", str(data)]
    return [NODE, str(EXAMPLE / "client.mjs"), what, *where, "--key-file", str(place / f"{name}.key")]


def test_it_declines_a_routine_that_it_does_not_know(tmp_path: Path) -> None:
    config = tiny_config(plan={"rounds": 1}, forgetting={"method": "pga"})
    state = make_state(tmp_path / "state", config, SOFTMAX, bytearray(SOFTMAX.nbytes(MODEL)))
    with running(state) as server, ExitStack() as stack:
        workers = [Process(words(server, tmp_path, "run", name), tmp_path / f"{name}.log") for name in ("a", "b")]
        for worker in workers:
            stack.enter_context(worker)
        control = OperatorClient(f"127.0.0.1:{server.operator_port}")
        wait_until(lambda: control.status().position.phase == fed.PHASE_IDLE, SECONDS, *workers)
        done = command([*words(server, tmp_path, "forget", "a"), "--receipt", str(tmp_path / "r.json")])
        assert done.code == Exit.FAILURE
        assert "this client does not know the routine ascent" in done.err
        (ticket,) = control.tickets()
        assert ticket.state == tk.TICKET_STATE_FAILED
    assert not (tmp_path / "r.json").exists()


def test_it_refuses_a_model_that_it_cannot_train_and_another_server_key(tmp_path: Path) -> None:
    with running(make_state(tmp_path / "state")) as server:
        done = command(words(server, tmp_path, "run", "a"))
        assert (done.code, done.err[:31]) == (Exit.FAILURE, "error: this client cannot join:")
    state = make_state(tmp_path / "other", manifest=SOFTMAX, payload=bytearray(SOFTMAX.nbytes(MODEL)))
    (tmp_path / "a.key").write_text("00" * 32 + "\n")
    with running(state) as server:
        done = command(words(server, tmp_path, "run", "a"))
        assert done.code == Exit.FAILURE
        assert "ask the operator before you delete that file" in done.err
