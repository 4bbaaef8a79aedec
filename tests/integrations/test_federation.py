"""An embedded federation with clients that train in numpy: rounds, requests and receipts, without a framework."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from puf_client.cli.main import main as puf_client
from puf_client.routines.dosing import DoseOptions
from puf_common.errors import InvalidUpdate, NotFound, NotNow, StorageCorrupted, UsageError
from puf_common.receipts.content import ReceiptContent
from puf_common.receipts.signed_receipt import read
from puf_embedded.arithmetic import Arrays, digest, scaled, weighted_mean
from puf_embedded.federation import EmbeddedFederation, Measure, Update
from puf_embedded.measuring import NodeData, chosen_dose, measured, per_sample, summed
from puf_server.core.config import Forgetting
from puf_server.core.state.measurements import Evaluation, Measurement, Sums
from puf_server.core.state.rounds import RoundKind
from puf_server.core.state.tickets import FiledBy, Mode, RequestForm, TicketState
from tests.integrations import task

BUFFERS = frozenset({"norm.running_mean"})


class World:
    """A framework in miniature: it trains, averages and asks."""

    def __init__(self, directory: Path, clients: int = 4, policy: Forgetting | None = None) -> None:
        self.federation = EmbeddedFederation(directory, title="test", software="tests", policy=policy)
        self.model: Arrays = task.initial()
        self.clients = {f"node-{i}": i for i in range(clients)}
        self.federation.install(self.model)
        self.federation.present(self.clients)
        self.silent: set[str] = set()

    def round(self) -> RoundKind | None:
        """Runs a round. None if it was given up."""
        federation = self.federation
        current = federation.round
        if current is None or current.kind is not RoundKind.UNLEARN:
            current = federation.begin([c for c in self.clients if c not in federation.kept_out])
        sent: dict[str, Arrays] = {}
        for a in current.assignments:
            if a.client in self.silent:
                continue
            number, dose, scale = self.clients[a.client], None, a.scale
            trained, samples = task.train(dict(self.model), number)
            if a.routine == "dose":
                assert a.unseen is not None
                given: dict[str, Any] = dict(a.options)
                train = partial(self._trained, number)
                found, dose = chosen_dose(self.model, train, self.data(number), DoseOptions(**given), a.unseen, BUFFERS)
                trained, scale = dict(found), a.scale * dose.kappa
            sent[a.client] = scaled(self.model, trained, scale, BUFFERS) if a.negated else trained
            federation.receive(a, Update(samples, 100, scale, dose))
        closed = federation.close()
        if closed is None:
            return None
        self.model = {
            k: v.astype(np.float32)
            for k, v in weighted_mean(
                [(a.samples, sent[a.client]) for a in closed.assignments if a.key in closed.received]
            ).items()
        }
        federation.commit(self.model, bytes_down=100)
        return closed.kind

    def _trained(self, number: int) -> Arrays:
        return task.train(dict(self.model), number)[0]

    def data(self, number: int) -> NodeData:
        return NodeData(
            train=lambda arrays: task.measure(dict(arrays), number, "train"),
            holdout=lambda arrays: task.measure(dict(arrays), number, "holdout"),
        )

    def survey(self) -> None:
        for client in self.clients:
            if client not in self.federation.kept_out:
                self.federation.holds_out(client, task.HOLDOUT, adapts=True)

    def evaluate(self, asked: Evaluation) -> Mapping[str, Sums]:
        return {
            c: summed(task.measure(dict(self.model), self.clients[c], "holdout"), by_class=True) for c in asked.asked
        }

    def measure(self, asked: Sequence[Measure]) -> Mapping[str, Measurement]:
        found = {}
        for m in asked:
            values = [task.measure(dict(self.model), self.clients[m.client], part) for part in ("train", "holdout")]
            found[m.ticket] = measured(values[0], values[1], m.unseen)
        return found

    def settle(self) -> list[Path]:
        return self.federation.settle(self.evaluate, self.measure)

    def until_completed(self, rounds: int = 25) -> ReceiptContent:
        for _ in range(rounds):
            written = self.settle()
            if written:
                return read(written[0].read_bytes()).content
            self.round()
        raise AssertionError("not completed")


def form(**changes: object) -> RequestForm:
    return RequestForm(key="r", by=FiledBy.OPERATOR, **changes)  # type: ignore[arg-type]


def test_a_request_runs_from_training_to_a_receipt_that_verifies(tmp_path: Path) -> None:
    world = World(tmp_path / "puf")
    assert [world.round() for _ in range(4)] == [RoundKind.TRAIN] * 4
    world.survey()
    ticket = world.federation.file("node-2", form(kappa=1.0, reference="case 7"))
    world.settle()
    assert world.round() is RoundKind.UNLEARN
    assert world.federation.kept_out == {"node-2"}
    receipt = world.until_completed()
    assert receipt.ticket.id == ticket.id
    assert (receipt.method.name, receipt.method.kappa, receipt.rounds.applied) == ("puf-regular", 1.0, 5)
    assert receipt.measured_by_client.verdict is not None
    assert receipt.deleted_models == ()
    assert "not recorded here" in receipt.statement
    assert receipt.models.before is not None
    assert receipt.models.before.status == "withdrawn"
    file = tmp_path / "puf" / "receipts" / f"receipt-{ticket.id}.json"
    assert puf_client(["verify", str(file), "--key", str(tmp_path / "puf" / "public-key.txt")]) == 0
    assert world.round() is RoundKind.TRAIN
    assert "node-2" in world.federation.kept_out


def test_doses_follow_what_the_target_measures(tmp_path: Path) -> None:
    world = World(tmp_path / "puf")
    for _ in range(6):
        world.round()
    world.survey()
    world.federation.file("node-2", form())
    receipt = world.until_completed()
    assert receipt.method.strength == "auto"
    assert receipt.method.doses is not None
    assert len(receipt.method.doses) >= 2
    assert receipt.measured_by_client.fraction_left is not None


def test_without_measurements_the_strength_is_fixed_and_the_receipt_says_why(tmp_path: Path) -> None:
    world = World(tmp_path / "puf", policy=Forgetting(blind_recovery_rounds=2))
    world.round()
    world.federation.file("node-1", form())
    receipt = world.until_completed()
    assert receipt.method.fixed_because is not None
    assert receipt.rounds.ended == "not measured"


def test_a_target_that_does_not_answer_voids_the_round(tmp_path: Path) -> None:
    world = World(tmp_path / "puf", policy=Forgetting(strength="fixed"))
    world.round()
    world.federation.file("node-1", form())
    world.settle()
    before = world.model
    world.silent = {"node-1"}
    assert world.round() is None
    assert world.model is before
    [ticket] = world.federation.state.tickets.values()
    assert ticket.state is TicketState.PENDING
    # The others train on without it.
    world.settle()
    assert world.round() is RoundKind.TRAIN


def test_an_update_with_another_scale_is_refused(tmp_path: Path) -> None:
    world = World(tmp_path / "puf", policy=Forgetting(strength="fixed"))
    world.round()
    world.federation.file("node-1", form(mode=Mode.SPECIAL))
    world.settle()
    current = world.federation.round
    assert current is not None
    [target] = current.assignments
    assert target.scale == -2.0
    with pytest.raises(InvalidUpdate, match="assigned was -2"):
        world.federation.receive(target, Update(50, 100, 1.0))


def test_a_later_run_knows_the_forgotten_and_continues(tmp_path: Path) -> None:
    world = World(tmp_path / "puf", policy=Forgetting(strength="fixed", blind_recovery_rounds=1))
    world.round()
    world.federation.file("node-1", form())
    world.until_completed()
    later = EmbeddedFederation(tmp_path / "puf", title="test", software="tests")
    later.install(world.model)
    assert later.kept_out == {"node-1"}
    assert later.config.id == world.federation.config.id
    assert later.state.version == world.federation.state.version
    later.install(task.initial())
    assert later.state.version == world.federation.state.version + 1


def test_a_run_that_ended_in_an_unlearning_round_leaves_the_request_pending(tmp_path: Path) -> None:
    world = World(tmp_path / "puf", policy=Forgetting(strength="fixed"))
    world.round()
    world.federation.file("node-1", form())
    world.settle()
    later = World(tmp_path / "puf", policy=Forgetting(strength="fixed", blind_recovery_rounds=1))
    [ticket] = later.federation.state.tickets.values()
    assert ticket.state is TicketState.PENDING
    assert later.until_completed().ticket.id == ticket.id


def unlearned_by_a_killed_run(tmp_path: Path) -> tuple[World, list[Arrays]]:
    """The models of a run that was killed in recovery: after training, unlearning and one recovery round."""
    world = World(tmp_path / "puf", policy=Forgetting(strength="fixed", blind_recovery_rounds=3))
    models = []
    for _ in range(3):
        world.round()
        models.append(world.model)
        if not world.federation.state.tickets:
            world.federation.file("node-1", form())
        world.settle()
    return world, models


def test_a_run_that_begins_with_the_model_from_before_the_unlearning_unlearns_again(tmp_path: Path) -> None:
    killed, [trained, _, _] = unlearned_by_a_killed_run(tmp_path)
    killed.federation.install(trained)
    [ticket] = killed.federation.state.tickets.values()
    assert (ticket.state, ticket.applied) == (TicketState.PENDING, None)
    killed.model = trained
    killed.settle()
    assert killed.round() is RoundKind.UNLEARN
    receipt = killed.until_completed()
    assert (receipt.ticket.id, receipt.rounds.applied) == (ticket.id, 4)
    assert receipt.models.before is not None
    assert receipt.models.before.digest == digest(trained)


def test_a_run_that_begins_with_an_unknown_model_unlearns_again(tmp_path: Path) -> None:
    killed, _ = unlearned_by_a_killed_run(tmp_path)
    killed.federation.install({name: value + 1 for name, value in killed.model.items()})
    [ticket] = killed.federation.state.tickets.values()
    assert ticket.state is TicketState.PENDING


def test_a_run_that_begins_with_an_older_unlearned_model_continues_recovery(tmp_path: Path) -> None:
    killed, [_, unlearned, _] = unlearned_by_a_killed_run(tmp_path)
    killed.federation.install(unlearned)
    [ticket] = killed.federation.state.tickets.values()
    assert ticket.state is TicketState.RECOVERING
    # The round of the killed run counts, and so does the first one of this run.
    assert killed.round() is RoundKind.RECOVER
    rounds = killed.until_completed().rounds
    assert (rounds.applied, rounds.recovery) == (2, 3)


def test_a_model_that_contains_a_forgotten_client_is_refused(tmp_path: Path) -> None:
    world, [trained, unlearned, _] = unlearned_by_a_killed_run(tmp_path)
    world.until_completed()
    later = EmbeddedFederation(tmp_path / "puf", title="test", software="tests")
    with pytest.raises(UsageError, match=r"contains node-1: request t-.* forgotten it in round 2"):
        later.install(trained)
    later.install(unlearned)
    assert later.kept_out == {"node-1"}


def test_requests_that_cannot_be_served_are_refused(tmp_path: Path) -> None:
    world = World(tmp_path / "puf", clients=1)
    world.round()
    with pytest.raises(NotNow, match="last client"):
        world.federation.file("node-0", form())
    both = World(tmp_path / "two", clients=2)
    both.round()
    with pytest.raises(NotFound):
        both.federation.file("node-9", form())


def test_a_changed_audit_log_is_found(tmp_path: Path) -> None:
    World(tmp_path / "puf").round()
    log = tmp_path / "puf" / "audit.jsonl"
    log.write_text(log.read_text().replace("node-1", "node-7"))
    with pytest.raises(StorageCorrupted, match="was changed"):
        EmbeddedFederation(tmp_path / "puf", title="test", software="tests")


def test_a_measurement_needs_values_for_every_sample() -> None:
    with pytest.raises(Exception, match="one confidence, one label"):
        per_sample([0.5], [1, 2], [True], 3)
