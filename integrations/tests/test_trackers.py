"""`puf-server serve --track` with the real packages: an MLflow server, and W&B without a network."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import Request, urlopen

import pytest
from integrations.tests.ports import free_port, listens
from tests.grpc.test_tracking import CLIENTS, SECRET, client
from tests.running import make_state, tiny_config

from puf_client.transport.grpc import GrpcTransport
from puf_common.tensors.model_file import read_manifest
from puf_common.v1 import federation_pb2 as pb
from puf_common.v1 import tickets_pb2 as tk
from puf_lab.federations.processes import Process, wait_until
from puf_server.cli.operator_client import OperatorClient
from puf_server.maintenance.audit_reader import show

ROOT = Path(__file__).parents[2]
PROGRAMS = ROOT / ".venv-tracking" / "bin"
SECONDS = 120.0

pytestmark = pytest.mark.skipif(
    not (PROGRAMS / "python").exists(), reason="needs MLflow and W&B: `make .venv-tracking/.ready` installs them"
)


class Outcome:
    """What the server says about a federation that trained two rounds and forgot cleo."""

    def __init__(self, control: OperatorClient) -> None:
        [self.ticket] = control.tickets()
        self.rounds = {record.number for record in control.rounds()}
        self.digests = {model.version: model.digest.hex() for model in control.models()}
        self.digest = self.digests[max(self.digests)]
        assert self.ticket.state == tk.TICKET_STATE_COMPLETED

    def assert_tags(self, tags: Mapping[str, str]) -> None:
        """The tags name the model and the request, and no client."""
        assert tags["puf.model.digest"] == self.digest
        request = tags[f"puf.ticket.{self.ticket.id}"]
        assert all(digest in request for digest in (self.digests[2], self.digests[self.ticket.applied_round]))
        assert self.digests[2] in tags["puf.withdrawn_models"]
        assert not [name for name in CLIENTS if name in str(dict(tags))]


def tracked(tmp_path: Path, track: str, env: Mapping[str, str], sent: Callable[[], bool]) -> Outcome:
    """Runs a server of the environment with the trackers, until `sent`. It has ended when the outcome is returned."""
    plan = {"min_clients": 3, "evaluate_every": 1, "heartbeat_seconds": 0.2}
    make_state(
        tmp_path / "server",
        tiny_config(plan=plan, forgetting={"max_recovery_rounds": 1, "measure_seconds": 0.0}),
    )
    ports = tmp_path / "ports"
    flags = ["--insecure", "--listen", "127.0.0.1:0", "--operator", "127.0.0.1:0", "--announce", str(ports)]
    words = [str(PROGRAMS / "puf-server"), "serve", "--state", str(tmp_path / "server"), *flags, "--track", track]
    with ExitStack() as stack:
        server = stack.enter_context(Process(words, tmp_path / "server.log", tmp_path, env))
        wait_until(lambda: ports.exists() and ports.read_text().endswith("\n"), SECONDS, server)
        target, operator = (f"127.0.0.1:{port}" for port in ports.read_text().split()[:2])
        control = stack.enter_context(OperatorClient(operator))
        for name in CLIENTS:
            stack.enter_context(client(target, name))
        # The model of the training is sent while the federation is idle.
        wait_until(lambda: exports(tmp_path / "server") == 1, SECONDS, server)
        with GrpcTransport(target, "cleo") as transport:
            wanted = tk.UnlearningRequest(request_key="r1", scope=tk.SCOPE_CLIENT)
            ticket = transport.file_unlearning(pb.FileUnlearningRequest(request=wanted)).ticket
            for _ in transport.follow_ticket(ticket.id):
                pass
        found = Outcome(control)
        wait_until(sent, SECONDS, server)
        control.stop()
        assert server.wait(SECONDS) == 0
        assert not re.search("not sent|not closed", server.log.read_text())
    return found


@contextmanager
def mlflow_server(tmp_path: Path) -> Iterator[str]:
    """The address of a server with a database, as teams run it."""
    port = free_port()
    store = ["--backend-store-uri", f"sqlite:///{tmp_path / 'mlflow.db'}"]
    files = ["--artifacts-destination", str(tmp_path / "artifacts")]
    words = [str(PROGRAMS / "mlflow"), "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    # Jobs are another service of the same program. It starts six processes more.
    env = {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_DISABLE_TELEMETRY": "true"}
    with Process([*words, *store, *files], tmp_path / "mlflow.log", tmp_path, env) as server:
        wait_until(lambda: listens(port), SECONDS, server)
        yield f"http://127.0.0.1:{port}"


def asked(address: str, path: str, **body: Any) -> Any:
    """The answer of MLflow's REST interface."""
    url = f"{address}/api/2.0/mlflow/{path}"
    if path in ("experiments/get-by-name", "metrics/get-history"):
        request = Request(f"{url}?{urlencode(body)}")
    else:
        request = Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urlopen(request, timeout=60) as reply:
        return json.load(reply)


def run_of(address: str) -> Any:
    """The only run of the federation; None before it began."""
    try:
        experiment = asked(address, "experiments/get-by-name", experiment_name="puf f-test")["experiment"]
    except HTTPError:
        return None
    runs = asked(address, "runs/search", experiment_ids=[experiment["experiment_id"]]).get("runs", [])
    assert len(runs) <= 1
    return runs[0] if runs else None


def tags_of(run: Any) -> dict[str, str]:
    return {tag["key"]: tag["value"] for tag in run["data"]["tags"]} if run else {}


def test_an_mlflow_server_gets_figures_tags_and_models(tmp_path: Path) -> None:
    with mlflow_server(tmp_path) as address:
        # The tags are sent last.
        found = tracked(tmp_path, f"mlflow:{address}", {}, lambda: "completed by" in str(tags_of(run_of(address))))
        run = run_of(address)
        metrics = {
            name: asked(address, "metrics/get-history", run_id=run["info"]["run_id"], metric_key=name)["metrics"]
            for name in ("round/seconds", "train/loss")
        }
    assert {int(m.get("step", 0)) for m in metrics["round/seconds"]} == found.rounds
    assert SECRET not in [m["value"] for m in metrics["train/loss"]]
    assert run["info"]["status"] == "FINISHED"
    found.assert_tags(tags_of(run))
    stored = {read_manifest(path)[1]["digest"] for path in (tmp_path / "artifacts").rglob("*.safetensors")}
    assert stored == {found.digests[2], found.digest}


# Reads the file of a run that W&B wrote without a network: records of checksum, length, type and bytes in blocks of 32 KiB,
# after seven bytes. The file is the last word of the command.
READER = """
import json, struct, sys
from pathlib import Path
from wandb.proto.wandb_internal_pb2 import Record
found = {"tags": {}, "rounds": [], "artifacts": []}
data, at, begun = Path(sys.argv[1]).read_bytes(), 7, b""
while at < len(data):
    if 32768 - at % 32768 < 7:
        at += 32768 - at % 32768
        continue
    length, kind = struct.unpack_from("<HB", data, at + 4)
    begun += data[at + 7 : at + 7 + length]
    at += 7 + length
    if kind not in (1, 4):
        continue
    record, begun = Record.FromString(begun), b""
    for item in (*record.config.update, *record.run.config.update):
        found["tags"][item.key or ".".join(item.nested_key)] = json.loads(item.value_json)
    values = {item.key or ".".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
    found["rounds"] += [values] if "round" in values else []
    artifact = record.artifact if record.HasField("artifact") else record.request.log_artifact.artifact
    if artifact.name:
        found["artifacts"].append([artifact.run_id, artifact.type, json.loads(artifact.metadata)["puf.model.digest"]])
print(json.dumps(found))
"""


def test_wandb_without_a_network_gets_figures_tags_and_models(tmp_path: Path) -> None:
    env = {"WANDB_MODE": "offline", "WANDB_DIR": str(tmp_path), "WANDB_CACHE_DIR": str(tmp_path / "cache")}
    found = tracked(tmp_path, "wandb:puf", env, lambda: exports(tmp_path / "server") == 2)
    [file] = tmp_path.glob("wandb/offline-run-*/run-*.wandb")
    reader = [str(PROGRAMS / "python"), "-c", READER, str(file)]
    done = subprocess.run(reader, capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == 0, done.stderr
    run = json.loads(done.stdout.splitlines()[-1])
    assert {values["round"] for values in run["rounds"]} == found.rounds
    assert SECRET not in [values.get("train/loss") for values in run["rounds"]]
    found.assert_tags(run["tags"])
    assert run["artifacts"] == [["f-test", "model", found.digests[2]], ["f-test", "model", found.digest]]


def exports(state: Path) -> int:
    return sum(entry.event == "model.exported" for entry in show(state, 1000))
