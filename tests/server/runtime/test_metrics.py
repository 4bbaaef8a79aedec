"""The metrics page, read with Prometheus' own parser."""

from __future__ import annotations

import math
import re
import urllib.request
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.grpc.raw import Raw, update_bytes
from tests.running import TINY, make_state, running, tiny_config, tiny_payload

from puf_common.errors import UsageError
from puf_common.tensors.manifest import MODEL
from puf_common.v1 import federation_pb2 as fed
from puf_common.v1 import tickets_pb2 as tk
from puf_server.runtime.metrics import client_states
from puf_server.runtime.server import Server

Samples = dict[tuple[str, str], float]


def page(server: Server) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{server.metrics_port}/metrics", timeout=10) as reply:
        return str(reply.read().decode())


def scraped(server: Server) -> Samples:
    """Every value by its name and the values of its labels."""
    found: Samples = {}
    for family in text_string_to_metric_families(page(server)):
        for sample in family.samples:
            found[sample.name, "/".join(v for k, v in sorted(sample.labels.items()) if k != "le")] = sample.value
    return found


def test_the_page_follows_the_federation(tmp_path: Path) -> None:
    config = tiny_config(plan={"rounds": 1, "evaluate_every": 1, "shards": 5})
    with running(make_state(tmp_path / "state", config), metrics="127.0.0.1:0") as server:
        before = scraped(server)
        assert before["puf_phase", "waiting"] == 1
        assert before["puf_clients", "alive"] == 0
        values = [v.ravel() for n, v in TINY.views(tiny_payload(), MODEL).items() if n.startswith("layer.")]
        norm = math.sqrt(sum(float((v.astype("f8") ** 2).sum()) for v in values))
        assert before["puf_model_norm", ""] == pytest.approx(norm)
        assert before["puf_ticket_deadline_seconds", ""] == math.inf

        anna, bert = Raw(server.port, "anna"), Raw(server.port, "bert")
        for client in (anna, bert):
            client.stub.LeaseShard(fed.LeaseShardRequest(), **client.options)
            client.join(holdout=4)
        work = [client.wait().train for client in (anna, bert)]
        for client, train in zip((anna, bert), work, strict=True):
            client.fetch(train.base_version)
            client.submit(train)
        for client in (anna, bert):
            asked = client.wait().evaluate
            sums = tk.EvaluationSums(samples=4, loss_sum=2.0, score_sum=3.0)
            report = fed.ReportEvaluationRequest(evaluation=asked.evaluation, version=asked.version, holdout=sums)
            client.stub.ReportEvaluation(report, **client.options)
        after = scraped(server)
        assert after["puf_rounds_committed_total", "train"] == 1
        assert after["puf_clients", "alive"] == 2
        assert after["puf_shards_leased", ""] == 2
        assert after["puf_accuracy", ""] == 0.75
        assert after["puf_bytes_total", "up"] > 0
        assert after["puf_bytes_total", "down"] > 0
        assert after["puf_phase", "idle"] == 1
        for phase in ("collecting", "folding", "committing"):
            assert after["puf_round_phase_seconds_count", f"train/{phase}"] == 1

        with pytest.raises(grpc.RpcError):
            anna.submit(work[0], update_bytes(3.0))
        assert scraped(server)["puf_updates_refused_total", "STALE_ROUND"] == 1

        anna.file()
        filed = scraped(server)
        assert filed["puf_clients", "leaving"] == 1
        assert filed["puf_tickets", "scheduled"] + filed["puf_tickets", "pending"] == 1
        assert 29 * 86400 < filed["puf_ticket_deadline_seconds", ""] <= 30 * 86400
        assert max(filed["puf_ticket_age_seconds", s] for s in ("pending", "scheduled")) < 60


def test_no_client_is_named(tmp_path: Path) -> None:
    with running(make_state(tmp_path / "state"), metrics="127.0.0.1:0") as server:
        Raw(server.port, "anna").join()
        assert "anna" not in page(server)


def test_without_an_address_there_is_no_endpoint(tmp_path: Path) -> None:
    with running(make_state(tmp_path / "state")) as server:
        assert server.metrics_port == 0


@pytest.mark.parametrize("address", ["9300", ":9300", "127.0.0.1:", "127.0.0.1:99999", "192.0.2.1:9300"])
def test_an_invalid_address_is_reported(tmp_path: Path, address: str) -> None:
    with pytest.raises(UsageError, match=re.escape("--metrics")), running(make_state(tmp_path / "s"), metrics=address):
        pass


class Counting(dict[str, Any]):
    """A mapping that counts how often all its values are read."""

    reads = 0

    def values(self) -> Any:
        self.reads += 1
        return super().values()


@pytest.mark.parametrize("members", [1, 50])
def test_a_scrape_reads_the_tickets_once_for_all_clients(tmp_path: Path, members: int) -> None:
    config = tiny_config()
    with running(make_state(tmp_path / "state", config)) as server:
        Raw(server.port, "anna").join()
        state, presence = server.engine.state, server.engine.presence
    anna = state.members["anna"]
    tickets = Counting(state.tickets)
    many = {f"client-{number}": anna for number in range(members)}
    counts = client_states(replace(state, members=many, tickets=tickets), presence, config, presence.seen["anna"])
    assert counts == {"absent": members}
    assert tickets.reads == 1


ALERTS = Path(__file__).parents[3] / "deploy/monitoring/alerts.yml"
DASHBOARD = Path(__file__).parents[3] / "deploy/monitoring/grafana/dashboards/puf.json"


@pytest.mark.parametrize("file", [ALERTS, DASHBOARD], ids=lambda p: p.name)
def test_rules_and_dashboard_use_metrics_that_exist(tmp_path: Path, file: Path) -> None:
    with running(make_state(tmp_path / "state"), metrics="127.0.0.1:0") as server:
        text = page(server)
    known = set(re.findall(r"^# TYPE (puf_\w+)", text, re.MULTILINE))
    # These have values only after an evaluation.
    known |= {"puf_accuracy", "puf_accuracy_version", "puf_loss"}
    used = set(re.findall(r"\bpuf_\w+", file.read_text()))
    assert used
    for name in used:
        assert name in known or re.sub(r"_(bucket|sum|count)$", "", name) in known, name
