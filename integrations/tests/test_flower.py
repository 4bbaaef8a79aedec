"""PUF in a Flower app, as docs/flower.md says: in the simulation and deployment engines, against PUF's own service."""

from __future__ import annotations

import json
import os
import subprocess
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from integrations.tests.deployment import ENVIRONMENT, PROGRAMS, ROOT, SECONDS, Deployment, page_lines
from integrations.tests.reference import service_model
from tests.integrations import task

from puf_client.cli.main import main as puf_client
from puf_common.receipts.signed_receipt import read
from puf_embedded.records import Records

# Flower averages in float32. The largest weight is about 1.
TOLERANCE = 2e-5
FIXED = {"strength": "fixed", "blind_recovery_rounds": 3, "max_recovery_rounds": 3}


def simulated(tmp_path: Path, **changes: Any) -> tuple[task.Arrays, list[Any]]:
    """The last model and the contents of the receipts of a run in Flower's simulation engine."""
    settings = {
        "nodes": 3, "targets": [1], "after": 4, "rounds": 8, "measures": False, "policy": FIXED,
        "directory": str(tmp_path / "puf"), "out": str(tmp_path / "model.npz"), **changes,
    }  # fmt: skip
    command = [str(PROGRAMS / "python"), "-m", "integrations.tests.simulated_app", json.dumps(settings)]
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ | ENVIRONMENT, capture_output=True, text=True, timeout=SECONDS
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return model(tmp_path / "model.npz"), receipts(tmp_path / "puf")


def model(path: Path) -> task.Arrays:
    with np.load(path) as found:
        return {name: found[name] for name in found}


def receipts(directory: Path) -> list[Any]:
    """The receipts, after `puf-client verify` has accepted each of them."""
    files = sorted((directory / "receipts").glob("*.json"))
    for file in files:
        assert puf_client(["verify", str(file), "--key", str(directory / "public-key.txt")]) == 0
    return [read(file.read_bytes()).content for file in files]


def assert_same(found: task.Arrays, expected: task.Arrays) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=0, atol=TOLERANCE, err_msg=name)


@pytest.mark.parametrize("mode", ["regular", "special"])
def test_a_simulated_run_gives_the_weights_of_the_service(mode: str, tmp_path: Path) -> None:
    expected = service_model(tmp_path / "service", 3, 1, rounds=4, recovery=3, mode=mode)
    found, [receipt] = simulated(tmp_path, policy={**FIXED, "mode": mode})
    assert_same(found, expected)
    assert receipt.method.name == f"puf-{mode}"
    assert (receipt.method.kappa, receipt.rounds.applied, receipt.rounds.recovery) == (2.0, 5, 3)
    assert receipt.ticket.filed_by == "client"
    assert (receipt.method.discloses is not None) == (mode == "special")


def test_two_nodes_are_forgotten_in_one_round(tmp_path: Path) -> None:
    found, both = simulated(tmp_path, nodes=4, targets=[0, 2], after=3, rounds=7)
    assert [r.rounds.applied for r in both] == [4, 4]
    assert {r.costs.requests_served_together for r in both} == {2}
    assert all(np.isfinite(value).all() for value in found.values())


def test_strength_adapts_to_what_the_target_measures(tmp_path: Path) -> None:
    _, [receipt] = simulated(tmp_path, nodes=4, targets=[2], after=5, rounds=20, measures=True, policy={})
    doses = receipt.method.doses
    assert receipt.method.strength == "auto"
    assert len(doses) >= 2
    assert doses[0].gap.value > 2 * doses[0].gap.error
    assert 0 < doses[0].kappa <= 8
    mine = receipt.measured_by_client
    assert mine.before.pool is not None
    assert mine.recovered.gap.value < mine.before.gap.value


ALL, RETAINED = [0, 1, 2, 3], [0, 2, 3]


@pytest.mark.parametrize(
    ("ends_after", "trained"),
    [
        # The first round of the second run is an ordinary one: the target already stays out.
        (2, [ALL, ALL, RETAINED, ALL, *4 * [RETAINED]]),
        (3, [ALL, ALL, ALL, *5 * [RETAINED]]),
        (5, [ALL, ALL, ALL, *5 * [RETAINED]]),
    ],
    ids=["before the unlearning round", "after it", "in recovery"],
)
def test_a_restarted_server_app_continues_and_keeps_a_forgotten_key_out(
    ends_after: int, trained: list[list[int]], tmp_path: Path
) -> None:
    """The second node asks in round 2. After its unlearning round it trains in no round, under any node id."""
    command = [str(PROGRAMS / "python"), "-m", "integrations.tests.restarted_app", str(tmp_path), str(ends_after)]
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ | ENVIRONMENT, capture_output=True, text=True, timeout=SECONDS
    )
    assert done.returncode == 0, done.stderr[-3000:]
    first, second = json.loads(done.stdout.splitlines()[-1])
    assert len(first) == ends_after
    assert first + second == trained
    [receipt] = receipts(tmp_path)
    assert (receipt.rounds.applied, receipt.rounds.recovery) == (4 if ends_after == 2 else 3, 3)
    assert receipt.ticket.client.startswith("key-")


def test_only_strategies_that_average_linearly_are_accepted() -> None:
    command = [str(PROGRAMS / "python"), "-m", "integrations.tests.strategies"]
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ | ENVIRONMENT, capture_output=True, text=True, timeout=SECONDS
    )
    refused = {name: why for name, why in json.loads(done.stdout.splitlines()[-1]).items() if why}
    assert refused.keys() == {
        "Largest", "momentum", "FedMedian", "Krum", "FedTrimmedAvg", "FedAdam", "Bulyan", "private", "no strategy",
    }  # fmt: skip
    assert "because it takes medians" in refused["FedMedian"]
    assert "is not the weighted mean" in refused["Largest"]


# Flower starts a process for every message.
@pytest.mark.timeout(1500)
def test_the_lines_of_the_page_forget_a_node_in_the_deployment_engine(tmp_path: Path) -> None:
    files = page_lines()
    assert set(files) == {"client_app.py", "server_app.py"}
    assert sum(text.count("# PUF") for text in files.values()) <= 10
    with ExitStack() as stack:
        federation = Deployment(tmp_path, stack, files)
        federation.start({1: "puf-forget=2"})
        federation.run(rounds=12)
    [receipt] = receipts(federation.state)
    assert receipt.ticket.filed_by == "client"
    assert receipt.ticket.client.startswith("key-")
    assert receipt.method.strength == "auto"
    assert receipt.method.doses or receipt.method.fixed_because
    assert all(np.isfinite(value).all() for value in model(federation.out).values())


@pytest.mark.timeout(3000)
def test_a_killed_server_of_the_deployment_engine_continues_and_keeps_a_forgotten_key_out(tmp_path: Path) -> None:
    """The operator names the key of the second node. Everything is killed in recovery and started again.

    Four rounds of training, one of unlearning and three of recovery give the weights of PUF's own service.
    """
    expected = service_model(tmp_path / "service", 3, 1, rounds=4, recovery=3, mode="regular")
    files = page_lines()
    files["client_app.py"] = changed(files["client_app.py"], "PufMod(measure)", "PufMod()")
    files["server_app.py"] = changed(
        files["server_app.py"], "forget=forget)", f"forget=forget, policy=Forgetting(**{FIXED}))"
    )
    files["server_app.py"] = changed(files["server_app.py"], "Forget(node=node)", "Forget(node=node, after_round=4)")
    files["server_app.py"] = "from puf_server.core.config import Forgetting\n" + files["server_app.py"]
    with ExitStack() as stack:
        federation = Deployment(tmp_path / "flower", stack, files)
        federation.start()
        federation.run(rounds=6, forget=federation.fingerprint(1))
        assert not receipts(federation.state)
        federation.kill()
        federation.start()
        federation.run(rounds=2)
        assert_same(model(federation.out), expected)
        [receipt] = receipts(federation.state)
        assert (receipt.rounds.applied, receipt.rounds.recovery) == (5, 3)
        federation.run(rounds=1)
    _, state = Records(federation.state).load()
    last = {name: member.last_round for name, member in state.members.items()}
    # Round 4 is the last one of training for the forgotten key, however often its node comes back.
    assert last.pop(receipt.ticket.client) == 4
    assert list(last.values()) == [9, 9]


def changed(text: str, old: str, new: str) -> str:
    assert old in text
    return text.replace(old, new)
