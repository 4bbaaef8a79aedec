"""A user's method and routine in real processes: inner products, own recovery, a server optimizer, a killed server."""

from __future__ import annotations

import hashlib
import json
import signal
from pathlib import Path

import pytest
from tests.e2e.federation import SETTING, opened
from tests.tickets import applied, outcome

from puf_common.config.exit_codes import Exit
from puf_common.v1 import tickets_pb2 as tk
from puf_lab.federations.in_process import InProcessFederation
from puf_lab.federations.processes import ServerProcess, wait_until
from puf_server.core.config import Forgetting

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

CODE = """
from dataclasses import replace

from puf_client.routines.train import train
from puf_server.core.methods.base import Method, Requirements, Step
from puf_server.core.methods.products import vector_of
from puf_server.core.state.rounds import Combine, CombineRule


def gently(given, context):
    return train(given.model, given.samples, given.task, replace(given.settings, lr=given.options["lr"]), context)


class Opposite(Method):
    name, summary = "opposite", "the target's update is negated, as long as the mean of the others"
    requires = Requirements(target_takes_part=True, retained_take_part=True)
    routines = ("opposite:gently",)

    def step(self, view):
        targets = [
            t.assignment(samples=t.forget_samples, epochs=1.0, routine="opposite:gently", options={"lr": 0.05})
            for t in view.targets
        ]
        assignments = tuple(sorted((*view.ordinary(view.cohort()), *targets), key=lambda a: a.client))
        return Step(base=view.state.version, assignments=assignments, combine=Combine(rule=CombineRule.LINEAR), last=True)

    def recovery_step(self, view, step):
        changed = tuple(replace(a, routine="opposite:gently", options={"lr": 0.02}) for a in step.assignments)
        return replace(step, assignments=changed)

    def factors(self, combine, updates, products):
        length = {vector_of(u): products.of(vector_of(u), vector_of(u)) ** 0.5 for u in updates}
        others = [length[vector_of(u)] for u in updates if not u.target]
        mean = sum(others) / len(others)
        return {vector_of(u): -mean / length[vector_of(u)] for u in updates if u.target}
"""


def test_a_users_method_and_routine_survive_a_killed_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "opposite.py").write_text(CODE)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.syspath_prepend(str(tmp_path))
    policy = Forgetting(method="opposite:Opposite", max_recovery_rounds=1, blind_recovery_rounds=1, strength="fixed")
    # The server steps by moments: those of recovery are new, and survive the kill.
    plan = {"server_optimizer": "yogi", "server_lr": 0.02}
    setting = SETTING.model_copy(update={"forgetting": policy, "plan": plan})
    with InProcessFederation(setting, tmp_path / "undisturbed") as here:
        here.train()
        [ticket] = here.forget([1])
        assert applied(ticket).recovery_rounds == 1
        expected = hashlib.sha256(here.payload(outcome(ticket).version_recovered)).digest()
    with opened(tmp_path / "federation", setting) as federation:
        federation.fleet()
        federation.idle()
        leaving = federation.unlearn(1)
        port = federation.server.address
        wait_until(lambda: bool(federation.server.control.tickets()), 60, federation.server, leaving)
        federation.server.send(signal.SIGKILL)
        federation.server.wait(30)
        again = ServerProcess(federation.directory / "server", federation.directory / "logs" / "again.log", listen=port)
        federation.server = federation.stack.enter_context(again)
        assert leaving.wait(120) == Exit.OK, leaving.tail(30)
        done = federation.ticket(1)
        assert (done.state, done.method) == (tk.TICKET_STATE_COMPLETED, "opposite")
        assert hashlib.sha256(federation.payload()).digest() == expected
        entries = [json.loads(line) for line in (federation.directory / "logs" / "again.log").read_text().splitlines()]
        assert [e["event"] for e in entries].count("optimizer.reset") == 1
        [factors] = [e["factors"] for e in entries if e.get("event") == "round.combined"]
        assert set(factors) == {"client-1/main"}
        assert factors["client-1/main"] < 0
