"""What a seed decides: a federation, and a random subset of faults (swarm testing)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from random import Random

from puf_server.core.config import FederationConfig, Forgetting, Limits, Plan, Recipe

__all__ = ["FAULTS", "NOBODY_ASKS", "Scenario", "calm", "draw", "restless"]

# The probability of each fault per opportunity, if the seed has activated it.
FAULTS: Mapping[str, float] = {
    "drop_request": 0.06,
    "drop_reply": 0.06,
    "duplicate": 0.06,
    "slow_network": 0.10,
    "slow_training": 0.10,
    "crash_server": 0.25,
    "crash_before_save": 0.004,
    "crash_after_save": 0.01,
    "crash_in_fold": 0.15,
    "crash_in_upload": 0.03,
    "sweep_in_upload": 0.10,
    "disk_full": 0.02,
    "overflow": 0.05,
    "crash_client": 0.25,
    "freeze_client": 0.20,
    "leave": 0.15,
    "decline": 0.05,
    "crash_owner": 0.15,
    "pause": 0.20,
    "stop": 0.10,
    "extend": 0.15,
    "readmit": 0.50,
    "stubborn": 0.50,
    "latecomers": 0.50,
    "withdraw": 0.40,
    "ask_twice": 0.40,
    "everybody_asks": 0.10,
    "cut_stream": 0.10,
    "operator_forgets": 0.10,
    "lose_state": 0.10,
    "backup": 0.40,
    "restore": 0.10,
    "leave_after_restore": 0.30,
    "clock_jump": 0.15,
    "client_clock_jump": 0.15,
    "bit_flip": 0.15,
    "row_flip": 0.15,
    "long_reader": 0.15,
    "cancel_begin": 0.10,
    "kill_at_write": 0.01,
    "power_cut": 0.005,
    "slow_fold": 0.20,
}

# No request needs operator approval.
# What can happen where several servers serve, and how often.
SERVER_FAULTS = {
    "lost_connection": 0.02,
    "late_commit": 0.01,
    "lost_notice": 0.2,
    "slow_notice": 0.1,
    "no_exchange": 0.1,
    "freeze_server": 0.3,
    "crash_server": 0.3,
}

NOBODY_ASKS = Limits(forget_share=1.0)


# Methods to draw from. PUF is as frequent as all others together.
METHODS = ("puf", "puf", "puf", "puf", "puf", "natural", "not", "retrain", "federaser")
FALLBACKS = ("", "", "retrain", "not")


@dataclass(frozen=True)
class Scenario:
    seed: int
    config: FederationConfig
    clients: int
    evaluators: int
    # The probability that a client asks to be forgotten, per opportunity.
    requests: float
    chaos_seconds: float
    faults: Mapping[str, float]
    # Whether workers can choose doses. They then have larger hold-outs to compare with.
    adapts: bool = False
    # Servers over one store.
    servers: int = 1


def several(scenario: Scenario, servers: int) -> Scenario:
    """The scenario with several servers and their faults. The clock is one for all and does not jump."""
    faults = {name: rate for name, rate in scenario.faults.items() if name != "clock_jump"}
    return replace(scenario, servers=servers, faults={**faults, **SERVER_FAULTS})


def draw(seed: int, *, method: str | None = None) -> Scenario:
    """A federation and its faults. With `method`, the seed does not decide the method, and there is no fallback."""
    rng, chance, strength = Random(f"scenario {seed}"), Random(f"method {seed}"), Random(f"strength {seed}")
    drawn = chance.choice(METHODS)
    drawn, fallback = (drawn, chance.choice(FALLBACKS)) if method is None else (method, "")
    clients = rng.randint(1, 6)
    heartbeat = rng.choice([10.0, 20.0, 30.0])
    plan = Plan(
        rounds=rng.randint(1, 8),
        min_clients=rng.randint(1, clients),
        start_clients=rng.choice([0, clients]),
        participation=rng.choice([1.0, 1.0, 0.7, 0.4]),
        quorum=rng.choice([0.3, 0.5, 1.0]),
        deadline_seconds=rng.choice([0.0, 0.0, 120.0, 400.0]),
        absent_seconds=heartbeat * rng.choice([2.0, 3.0, 6.0]),
        heartbeat_seconds=heartbeat,
        evaluate_every=rng.choice([0, 1, 3]),
        survey_seconds=rng.choice([60.0, 300.0]),
        max_evaluators=rng.choice([2, 100]),
        keep_models=rng.choice([0, 1, 3]),
    )
    special = rng.random() < 0.8
    forgetting = Forgetting(
        method=drawn,
        method_options={"rounds": str(chance.randint(0, 3))} if drawn == "natural" else {},
        fallback=fallback,
        mode="special" if special and rng.random() < 0.3 else "regular",
        flip=rng.choice(["client", "server"]),
        strength=strength.choice(["auto", "auto", "fixed"]),
        max_doses=strength.choice([1, 3, 8]),
        escalate=strength.choice(["", "retrain", "not"]) if drawn == "puf" else "",
        kappa=rng.choice([0.5, 2.0]),
        max_total_kappa=rng.choice([4.0, 8.0]),
        special_allowed=special,
        retained_rate=rng.choice([1.0, 0.5]),
        deadline_days=rng.choice([0.005, 0.02, 30.0]),
        recovery_ratio=rng.choice([0.8, 0.98]),
        max_recovery_rounds=rng.randint(0, 4),
        blind_recovery_rounds=rng.randint(0, 2),
        recovery_days=rng.choice([0.01, 7.0]),
        min_retained=rng.choice([0, 1, 1, 2]),
        attempt_seconds=rng.choice([200.0, 900.0]),
        measure_seconds=rng.choice([0.0, 60.0, 300.0]),
        grace_days=rng.choice([0.0, 0.01, 7.0]),
    )
    share = rng.choice([0.0, 0.25, 0.5])
    scenario = Scenario(
        seed=seed,
        config=FederationConfig(
            id="sim", model="books", recipe=Recipe(seed=seed), plan=plan, forgetting=forgetting, limits=NOBODY_ASKS
        ),
        clients=clients,
        evaluators=rng.choice([0, 0, 0, 1]),
        requests=rng.choice([0.1, 0.3, 0.6]),
        chaos_seconds=rng.choice([900.0, 1500.0]),
        faults={name: rate for name, rate in FAULTS.items() if rng.random() < share},
        adapts=strength.random() < 0.8,
    )
    # The operator files a request for an absent client.
    return replace(scenario, faults={**scenario.faults, "forget_absent": 0.3}) if fallback else scenario


def restless(seed: int) -> Scenario:
    """A scenario of `draw` with more restores, withdrawn requests and leaving clients at the same time."""
    drawn = draw(seed)
    often = {"backup": 0.9, "restore": 0.25, "leave": 0.3, "crash_client": 0.3, "extend": 0.9, "withdraw": 0.3}
    return replace(drawn, clients=max(3, drawn.clients), requests=0.25, faults={**drawn.faults, **often})


def calm(seed: int, faults: Mapping[str, float], method: str = "puf") -> Scenario:
    """A federation whose models depend on the clients' results only: no client is late or missing.

    Requests are filed one by one while the federation is idle. Crashes can delay them but not change their order.
    """
    config = FederationConfig(
        id="calm",
        model="books",
        recipe=Recipe(seed=seed),
        plan=Plan(
            rounds=3,
            min_clients=4,
            absent_seconds=3600.0,
            heartbeat_seconds=20.0,
            quorum=1.0,
            evaluate_every=0,
            survey_seconds=7200.0,
        ),
        # Recovery waits for the target's figures, however long it takes.
        forgetting=Forgetting(method=method, attempt_seconds=7200.0, max_recovery_rounds=3, measure_seconds=7200.0),
        limits=NOBODY_ASKS,
    )
    return Scenario(
        seed=seed,
        config=config,
        clients=4,
        evaluators=0,
        requests=0.0,
        chaos_seconds=40_000.0,
        faults=faults,
        adapts=bool(seed % 2),
    )
