"""Every method in a federation in this process does what it declares."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.tickets import applied, outcome

from puf_common.errors import NotNow, PufError
from puf_common.tensors.manifest import MODEL
from puf_common.v1 import federation_pb2 as fed
from puf_lab.federations.in_process import InProcessFederation
from puf_lab.spec.federation import DataSpec, FederationSpec, client_name
from puf_server.core import methods
from puf_server.core.config import Forgetting, Recipe
from puf_server.core.state.members import MemberStatus
from puf_server.core.state.models import ModelStatus
from puf_server.core.state.rounds import RoundKind
from puf_server.core.state.state import State
from puf_server.core.state.tickets import TicketState
from puf_server.storage.layout import history_name

ALL = list(methods.known())
HISTORIES = tuple(name for name, method in methods.known().items() if method.stores.words)
# Tiny models may collapse. They must not wait for an operator.
BRIEF: dict[str, Any] = {"max_recovery_rounds": 1, "collapse_ratio": 0.0, "strength": "fixed"}
SETTING = FederationSpec(
    title="methods",
    data=DataSpec(clients=4, options={"noise": 1.0, "per_client": 20}, public=True),
    rounds=3,
    recipe=Recipe(lr=0.1, batch_size=10, seed=1),
    forgetting=Forgetting(also_remember=HISTORIES, **BRIEF),
)
# Fewer rounds and epochs than published, to save time.
SHORT: dict[str, dict[str, str]] = {
    "natural": {"rounds": "1"},
    "mode": {"rounds": "2", "degrade_rounds": "1"},
    "fedau": {"epochs": "2"},
    "pga": {"epochs": "1"},
    "fukd": {"epochs": "1"},
    "negmerge": {"runs": "2"},
    "fedosd": {"rounds": "2"},
    "sifu": {"rounds": "1"},
}


def policy(method: str, **options: str) -> Forgetting:
    if method == "puf-auto":
        return Forgetting(**{**BRIEF, "strength": "auto", "max_doses": 2})
    return Forgetting(method=method, method_options={**SHORT.get(method, {}), **options}, **BRIEF)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InProcessFederation]:
    with InProcessFederation(SETTING, tmp_path_factory.mktemp("trained") / "all") as federation:
        federation.train()
        yield federation


@pytest.mark.parametrize("method", ALL)
def test_a_method_does_what_it_declares(method: str, trained: InProcessFederation, tmp_path: Path) -> None:
    declared = methods.known()[method].requires
    unlearned, rounds = [], []
    for target in (1, 2):
        with trained.copy(tmp_path / f"for-{target}", forgetting=policy(method)) as federation:
            [ticket] = federation.forget([target])
            assert ticket.state is TicketState.COMPLETED
            assert applied(ticket).method in (method, f"{method}-regular")
            made = applied(ticket).version_unlearned
            assert made is not None
            unlearned.append(federation.state.models[made].digest)
            asked = [r.expected for r in federation.state.records.values() if r.kind is RoundKind.UNLEARN]
            # A step that the server does alone is not a round of communication.
            rounds.append(sum(number > 0 for number in asked))
            assert bool(sum(asked)) == (
                declared.target_takes_part or declared.retained_take_part or declared.auxiliary_data
            )
            # The history has no record of the target.
            assert client_name(target) not in {r.client for r in federation.state.history.values()}
    assert (unlearned[0] != unlearned[1]) == declared.selective
    assert (max(rounds) <= 1) == declared.single_round


@pytest.mark.parametrize("method", ALL)
def test_methods_that_declare_it_forget_several_targets_at_once(
    method: str, trained: InProcessFederation, tmp_path: Path
) -> None:
    with trained.copy(tmp_path / "two", forgetting=policy(method)) as federation:
        if not methods.known()[method].requires.simultaneous:
            pytest.skip("one at a time")
        first, second = federation.forget([1, 2])
        assert applied(first).round == applied(second).round


@pytest.mark.parametrize("method", ALL)
def test_methods_that_declare_it_forget_an_absent_target(
    method: str, trained: InProcessFederation, tmp_path: Path
) -> None:
    with trained.copy(tmp_path / "gone", without=[1], forgetting=policy(method)) as federation:
        ticket, _ = federation.handlers.tickets.forget(client_name(1), "", 0.0)
        if methods.known()[method].requires.target_takes_part:
            with pytest.raises(PufError, match="makes no progress"):
                federation.run_until(lambda s: not s.tickets[ticket.id].open)
        else:
            federation.run_until(lambda s: not s.tickets[ticket.id].open)
            assert applied(federation.state.tickets[ticket.id]).method == method


@pytest.mark.parametrize("method", ALL)
def test_only_methods_that_declare_history_store_it(method: str, tmp_path: Path) -> None:
    setting = SETTING.model_copy(update={"rounds": 1, "forgetting": policy(method)})
    with InProcessFederation(setting, tmp_path / "f") as federation:
        federation.train()
        memory = methods.known()[method].stores
        files = list((tmp_path / "f" / "server").glob("history/*"))
        assert bool(federation.state.history) == (memory.norms or memory.first_updates or memory.sums or memory.spreads)
        assert bool(files) == (memory.first_updates or memory.sums)
        reply = federation.handlers.describe(fed.DescribeRequest())
        assert (reply.method, tuple(reply.remembers)) == (method.removesuffix("-auto"), memory.words)
        assert bool(memory.words) == (
            methods.known()[method].requires.history or methods.known()[method].requires.stateful_clients
        )


def test_retraining_gives_the_model_of_a_federation_without_the_target(
    trained: InProcessFederation, tmp_path: Path
) -> None:
    with trained.copy(tmp_path / "again", forgetting=policy("retrain")) as federation:
        [ticket] = federation.forget([1])
        again = federation.payload(applied(ticket).version_unlearned)
    with InProcessFederation(SETTING, tmp_path / "never", without=[1]) as never:
        never.train()
        assert bytes(never.payload()) == bytes(again)


def test_natural_without_a_round_is_the_original(trained: InProcessFederation, tmp_path: Path) -> None:
    with trained.copy(tmp_path / "same", forgetting=policy("natural", rounds="0")) as federation:
        [ticket] = federation.forget([1])
        assert bytes(federation.payload()) == bytes(trained.payload())
        assert outcome(ticket).version_recovered == applied(ticket).version_unlearned


def test_federaser_does_not_read_the_history_of_the_target(trained: InProcessFederation, tmp_path: Path) -> None:
    digests = []
    for poisoned in (False, True):
        with trained.copy(tmp_path / f"p-{poisoned}", forgetting=policy("federaser")) as federation:
            if poisoned:
                [path] = (tmp_path / f"p-{poisoned}" / "server" / "history").glob("*.first-updates.client-1.*")
                path.write_bytes(bytes(path.stat().st_size))
            [ticket] = federation.forget([1])
            digests.append(hashlib.sha256(federation.payload(applied(ticket).version_unlearned)).hexdigest())
    assert digests[0] == digests[1]


def test_a_method_without_stored_history_is_refused(tmp_path: Path) -> None:
    setting = SETTING.model_copy(update={"rounds": 1, "forgetting": policy("puf")})
    with InProcessFederation(setting, tmp_path / "f") as federation:
        federation.train()
        with (
            federation.copy(tmp_path / "g", forgetting=policy("federaser")) as changed,
            pytest.raises(NotNow, match="stored none of round 1"),
        ):
            changed.forget([1])


@pytest.mark.parametrize("method", ["federaser", "mode", "fukd", "rapid", "fedosd"])
def test_a_restart_within_any_step_gives_the_same_weights(
    method: str, trained: InProcessFederation, tmp_path: Path
) -> None:
    with trained.copy(tmp_path / "whole", forgetting=policy(method)) as federation:
        [ticket] = federation.forget([1])
        models = applied(ticket).version_unlearned, outcome(ticket).version_recovered
        whole = [bytes(federation.payload(version)) for version in models]
        steps = sum(r.kind is RoundKind.UNLEARN for r in federation.state.records.values())
    federation = trained.copy(tmp_path / "cut", forgetting=policy(method))
    first = federation.state.number + 1
    federation.handlers.tickets.forget(client_name(1), "", 0.0)
    setting = federation.spec
    for number in range(first, first + steps):
        federation.run_until(partial(_half_way, number))
        gone = [1] if federation.state.members[client_name(1)].status is MemberStatus.FORGOTTEN else []
        # No client leaves. The next process knows only the state on disk.
        federation.engine.close()
        federation = InProcessFederation(setting, tmp_path / "cut", without=gone)
    federation.run_until(lambda s: not any(t.open for t in s.tickets.values()))
    [ticket] = federation.state.tickets.values()
    assert (applied(ticket).version_unlearned, outcome(ticket).version_recovered) == models
    assert [bytes(federation.payload(version)) for version in models] == whole
    federation.engine.close()


def _half_way(number: int, state: State) -> bool:
    """Whether the round has received some updates and lacks others, or is over."""
    current = state.round
    return state.number >= number or (current is not None and current.number == number and bool(current.received))


def test_the_ticket_says_that_the_target_lacks_its_local_model(trained: InProcessFederation, tmp_path: Path) -> None:
    with trained.copy(tmp_path / "lost", forgetting=policy("pga")) as federation:
        for path in (tmp_path / "lost" / "clients").glob("*/client-1/last-models/*"):
            path.unlink()
        with pytest.raises(PufError, match="makes no progress"):
            federation.forget([1])
        [ticket] = federation.state.tickets.values()
        assert ticket.state is TicketState.PENDING
        assert "has not stored its local model of round 3" in ticket.history[-1].note


def test_fukd_without_distillation_subtracts_the_targets_contributions(
    trained: InProcessFederation, tmp_path: Path
) -> None:
    """The model is w_0 plus the sums of all clients. The erased model is w_0 plus the sums of the others."""
    manifest = trained.engine.manifest
    with trained.copy(tmp_path / "sums", forgetting=policy("fukd", lr="1e-30")) as federation:
        sums = {
            r.client: np.frombuffer((tmp_path / "sums" / "server" / "history" / history_name(r)).read_bytes(), "<f4")
            for r in federation.state.history.values()
            if r.kind == "sums"
        }
        initial, model = (np.frombuffer(federation.payload(v), "<f4") for v in (0, federation.state.version))
        assert manifest.nbytes("update") == manifest.nbytes("model")
        assert np.allclose(initial + sum(sums.values()), model, atol=1e-5)
        [ticket] = federation.forget([1])
        left = np.frombuffer(federation.payload(applied(ticket).version_unlearned), "<f4")
        assert np.allclose(left, model - sums["client-1"], atol=1e-5)


OWN = '''
from puf_server.core.methods.base import Method, Requirements, Step
from puf_server.core.methods.layers import last_layer
from puf_server.core.methods.puf import Puf
from puf_server.core.state.rounds import Assignment, Combine, Part


class Transplant(Method):
    """Uses every feature of a step: an auxiliary model, a second model for the client, a partial update, a state."""

    name, summary = "transplant", "the target trains a head on its own; the model gets the difference"
    requires = Puf.requires

    def step(self, view):
        if view.started.step == 0:
            return Step(base=view.state.version, combine=Combine(rule="halve"), into="half", method_state={"halved": 1})
        assert view.started.method_state == {"halved": 1}
        [target] = view.targets
        assignment = Assignment(
            client=target.member.name, membership=target.member.membership, part=Part.MAIN, ticket=target.ticket.id,
            samples=target.member.samples, outputs=("@head",), aux=view.started.aux["half"], lr=0.05,
        )
        combine = Combine(rule="mix", others={"half": view.started.aux["half"]})
        return Step(base=view.model, assignments=(assignment,), combine=combine, denominator=target.member.samples, last=True)

    def rule(self, combine, manifest, updates):
        if combine.rule == "halve":
            return lambda block: block.w / 2
        head = last_layer(manifest)

        def mix(block):
            [update] = block.updates
            assert (update.u is not None) == (block.tensor.name in head)
            return block.others["half"] if update.u is None else block.w + update.u

        return mix
'''


def test_the_users_method_may_use_every_feature_of_a_step(
    trained: InProcessFederation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_method.py").write_text(OWN)
    monkeypatch.syspath_prepend(str(tmp_path))
    with trained.copy(tmp_path / "own", forgetting=policy("own_method:Transplant")) as federation:
        [ticket] = federation.forget([1])
        assert (ticket.state, applied(ticket).method) == (TicketState.COMPLETED, "transplant")
        manifest, before = federation.engine.manifest, trained.payload()
        old = dict[str, Any](manifest.views(before, MODEL))
        new = dict[str, Any](manifest.views(federation.payload(applied(ticket).version_unlearned), MODEL))
        *body, weight, bias = (t.name for t in manifest.tensors)
        assert all(np.array_equal(new[name], old[name] / 2) for name in body)
        assert not any(np.array_equal(new[name], old[name]) for name in (weight, bias))
        # Only the head was sent. The auxiliary model was deleted when the ticket was applied.
        record = federation.state.records[applied(ticket).round]
        assert record.nbytes_up == new[weight].nbytes + new[bias].nbytes
        assert federation.state.models[4].status is ModelStatus.DELETED
