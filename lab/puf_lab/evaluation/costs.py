"""Cost of forgetting by the formulas of the paper's appendix. Reports print it beside the counted bytes and samples.

Communication and storage are in bytes, computation in FLOPs. P parameters of B bytes, F FLOPs per sample, N samples per
client, E local epochs, C clients of which C_u are forgotten and C_r are retained, R rounds.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

BYTES_PER_PARAMETER = 4


@dataclass(frozen=True, kw_only=True)
class Shape:
    """The sizes that the formulas use."""

    parameters: int
    flops_per_sample: float
    samples_per_client: float
    clients: int
    targets: int
    epochs: float = 1.0
    rounds: int = 200
    head_parameters: int = 0
    unlearning_epochs: float = 1.0
    targets_stay: bool = False
    """Only samples are forgotten: the targets keep the rest and take part in recovery."""

    @property
    def model_bytes(self) -> int:
        return self.parameters * BYTES_PER_PARAMETER

    @property
    def retained(self) -> int:
        return self.clients if self.targets_stay else self.clients - self.targets


@dataclass(frozen=True)
class Cost:
    communication: float
    computation: float
    storage: float

    def then(self, other: Cost) -> Cost:
        """Both one after the other, with the storage of this one."""
        communication = self.communication + other.communication
        return replace(self, communication=communication, computation=self.computation + other.computation)


def cost(method: str, shape: Shape, recovery_rounds: float, **options: float) -> Cost:
    """Cost of unlearning and recovery together.

    Options are those of single methods: retained_rounds, calibration_epochs (FedEraser), ascent_epochs (PGA),
    degradation_rounds and guidance_rounds (MoDe).
    """
    if method == "Retrain":
        return _rounds(shape, shape.retained, shape.epochs, shape.rounds)
    recovery = _rounds(shape, shape.retained, shape.epochs, recovery_rounds)
    return _unlearning(method, shape, options).then(recovery)


def _unlearning(method: str, s: Shape, options: dict[str, float]) -> Cost:
    nothing = Cost(0.0, 0.0, s.model_bytes)
    if method in ("Natural", "NoT"):
        return nothing
    if method == "PUF-Special":
        return _rounds(s, s.targets, s.unlearning_epochs, 1)
    if method == "PUF-Regular":
        others = _rounds(s, s.clients - s.targets, s.epochs, 1)
        return others.then(_rounds(s, s.targets, s.unlearning_epochs, 1))
    if method == "FedEraser":
        retained = options.get("retained_rounds", s.rounds)
        calibration = _rounds(s, s.retained, options.get("calibration_epochs", 0.5), retained)
        return replace(calibration, storage=s.clients * retained * s.model_bytes)
    if method == "PGA":
        ascent = _rounds(s, s.targets, options.get("ascent_epochs", 5.0), 1)
        return replace(ascent, storage=s.clients * s.model_bytes)
    if method == "FedAU":
        return replace(nothing, communication=2.0 * s.head_parameters * BYTES_PER_PARAMETER)
    if method == "MoDe":
        degrade = _rounds(s, s.retained, s.epochs, options.get("degradation_rounds", 6))
        guide = _rounds(s, s.clients, s.epochs, options.get("guidance_rounds", 10))
        return replace(degrade.then(guide), storage=2 * s.model_bytes)
    raise ValueError(f"no cost formula for {method}")


def _rounds(s: Shape, clients: float, epochs: float, rounds: float) -> Cost:
    return Cost(
        2.0 * s.model_bytes * clients * rounds,
        s.flops_per_sample * s.samples_per_client * epochs * clients * rounds,
        s.model_bytes,
    )
