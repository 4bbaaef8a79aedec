"""FedQUIT: the mean of the targets' models, and the rate of recovery."""

from __future__ import annotations

from puf_server.core import methods
from puf_server.core.state.rounds import Combine, RoundKind
from tests.server.core.test_methods import NET, block, trained, update
from tests.tickets import applied


def test_the_model_is_the_mean_of_the_targets_models_by_samples() -> None:
    updates = [update("a", 3, (0.4, 0.0)), update("b", 1, (0.0, -0.8))]
    rule = methods.named("fedquit").rule(Combine(rule="install"), NET, updates)
    # (1, 2) + 3/4 * (0.4, 0) + 1/4 * (0, -0.8)
    assert rule(block((1, 2), updates)).round(6).tolist() == [1.3, 1.8]
    buffer = block((1, 2), updates, name="norm.running_mean")
    assert rule(buffer) is buffer.w


def test_the_target_distils_and_recovery_has_its_own_rate() -> None:
    f = trained(method="fedquit", method_options={"recovery_lr": "0.5"}, blind_recovery_rounds=1)
    ticket = f.file("b")
    [assignment] = f.round.assignments
    assert (assignment.client, assignment.routine, assignment.lr, assignment.epochs) == ("b", "quit", 1e-3, 1.0)
    assert assignment.options == {"batch_size": 32.0, "adam": 1.0}
    f.run_round(RoundKind.UNLEARN)
    assert f.round.lr == 0.5
    assert applied(f.ticket(ticket.id)).scale is None
