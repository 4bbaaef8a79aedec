"""The operator's configuration. Field descriptions are the help texts of the command line."""

from __future__ import annotations

import hashlib
import json
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator


class _Settings(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Recipe(_Settings):
    """How clients train. It cannot change after creation: it is part of the fingerprint."""

    optimizer: Literal["sgd", "adam", "adamw"] = Field("sgd", description="local optimizer")
    lr: float = Field(0.1, gt=0, description="local learning rate of round 1")
    lr_decay: float = Field(0.998, gt=0, le=1, description="training round t has lr * lr_decay^(t-1)")
    momentum: float = Field(0.0, ge=0, lt=1, description="momentum of sgd")
    weight_decay: float = Field(0.0, ge=0, description="weight decay of the local optimizer")
    batch_size: int = Field(32, ge=1, description="local batch size; the last, smaller batch is used")
    epochs: int = Field(1, ge=1, description="local epochs per round")
    seed: int = Field(1, ge=0, lt=2**63, description="seed of all random streams")
    threads: int = Field(
        1, ge=1, le=256, description="CPU threads per client; results depend on it, so it is part of the recipe"
    )
    plain_unlearning: bool = Field(False, description="train without augmentation in unlearning rounds")
    channels_last: bool = Field(False, description="store images and convolutions with channels last in memory")
    amp: bool = Field(
        False, description="compute in bfloat16 where torch's autocast permits it; weights keep their type"
    )
    compile: bool = Field(False, description="compile the model with torch before training; useful on GPUs")

    def lr_at(self, round_number: int) -> float:
        return float(self.lr * self.lr_decay ** (round_number - 1))


class Plan(_Settings):
    """How rounds run."""

    rounds: int = Field(50, ge=0, description="training rounds before the federation is idle")
    min_clients: int = Field(
        2, ge=1, description="clients that must be alive before a round opens; does not fall when clients leave"
    )
    start_clients: int = Field(
        0, ge=0, description="clients that must be alive before the first round opens; 0: min_clients"
    )
    participation: float = Field(1.0, gt=0, le=1, description="share of the alive clients that takes part in a round")
    quorum: float = Field(0.5, gt=0, le=1, description="share of a round's updates that suffices at the deadline")
    deadline_seconds: float = Field(
        0.0, ge=0, description="seconds after which a round may close with a quorum; 0: no deadline"
    )
    absent_seconds: float = Field(
        60.0, gt=0, description="seconds without a heartbeat after which rounds do not wait for a client"
    )
    heartbeat_seconds: float = Field(5.0, gt=0, description="seconds between heartbeats of a client")
    server_lr: float = Field(
        1.0, gt=0, description="learning rate of the server (the paper's eta_s) in ordinary rounds"
    )
    server_optimizer: Literal["sgd", "adam", "yogi"] = Field(
        "sgd",
        description="how ordinary rounds step: sgd is FedAvg; adam and yogi are FedOpt with moments on the server",
    )
    server_beta1: float = Field(0.9, ge=0, lt=1, description="adam, yogi: decay of the mean update")
    server_beta2: float = Field(0.99, ge=0, lt=1, description="adam, yogi: decay of the mean squared update")
    server_tau: float = Field(1e-3, gt=0, description="adam, yogi: added to the root of the mean square (adaptivity)")
    evaluate_every: int = Field(10, ge=0, description="rounds between evaluations on the clients' hold-outs; 0: never")
    survey_seconds: float = Field(600.0, gt=0, description="seconds that an evaluation waits for alive clients")
    max_evaluators: int = Field(100, ge=1, description="largest number of clients that evaluate a model")
    update_encoding: Literal["full", "f16", "bf16", "i8"] = Field(
        "full", description="encoding of updates: full; f16 or bf16, half the bytes; i8, a quarter with error feedback"
    )
    step_encoding: Literal["full", "difference", "i8"] = Field(
        "full",
        description="how a new model travels to clients that hold an earlier one: full; difference, exact and compressed; "
        "i8, ordinary rounds step in 8-bit numbers, a quarter of the bytes with error feedback",
    )
    keep_models: int = Field(3, ge=0, description="number of newest model versions to keep on disk; 0: all")
    shards: int = Field(0, ge=0, le=1_000_000, description="shards that clients can lease (--shard lease); 0: none")

    @model_validator(mode="after")
    def _silence_is_longer_than_a_heartbeat(self) -> Self:
        if self.absent_seconds < 2 * self.heartbeat_seconds:
            raise ValueError("absent_seconds must be at least twice heartbeat_seconds")
        return self

    @model_validator(mode="after")
    def _rounded_steps_are_plain(self) -> Self:
        if self.step_encoding == "i8" and self.server_optimizer != "sgd":
            raise ValueError("step_encoding i8 needs server_optimizer sgd; use difference with adam or yogi")
        return self


class Forgetting(_Settings):
    """How the federation forgets."""

    method: str = Field("puf", description="method that serves requests; `puf-server methods` lists them")
    method_options: dict[str, str] = Field({}, description="the method's own parameters, e.g. rounds=5")
    fallback: str = Field(
        "", description="method for targets that are gone, e.g. retrain or not; empty: their requests fail"
    )
    also_remember: tuple[str, ...] = Field(
        (), description="further methods whose history is stored, so that the federation can change to them"
    )
    mode: Literal["regular", "special"] = Field("regular", description="mode of requests that name none")
    flip: Literal["client", "server"] = Field("client", description="side that negates and scales the target's update")
    strength: Literal["auto", "fixed"] = Field(
        "auto",
        description="strength of PUF-Regular requests that name none. auto: several rounds by the measured effect; "
        "fixed: one round with kappa",
    )
    max_dose: float = Field(8.0, ge=0.125, description="largest kappa of one round with adaptive strength")
    max_doses: int = Field(8, ge=1, description="largest number of unlearning rounds with adaptive strength")
    dose_epochs: int = Field(
        3, ge=1, description="local epochs of the target in a round with adaptive strength, at most max_epochs"
    )
    escalate: str = Field(
        "",
        description="method that follows if the target's data can still be told from unseen data: retrain, federaser or "
        "not; empty: the request completes with that verdict",
    )
    kappa: float = Field(2.0, gt=0, description="fixed strength of requests that name none")
    min_kappa: float = Field(0.5, gt=0, description="smallest kappa of a request")
    max_kappa: float = Field(4.0, gt=0, description="largest kappa of a request")
    max_total_kappa: float = Field(
        8.0, gt=0, description="largest sum of kappa in one round; further requests wait for the next round"
    )
    max_eta_u: float = Field(40.0, ge=0, description="largest eta_u (the paper's rate) of a request; 0 forbids eta_u")
    epochs: int = Field(1, ge=1, description="local epochs of the target in the unlearning round (E_u)")
    max_epochs: int = Field(5, ge=1, description="largest number of local epochs of a request")
    retained_rate: float = Field(1.0, gt=0, description="scale of retained updates in PUF-Regular (eta_r)")
    special_allowed: bool = Field(True, description="accept PUF-Special, which discloses a lone target's update")
    special_min_targets: int = Field(
        1,
        ge=1,
        description="targets that PUF-Special waits for: the models disclose only the sum of their updates",
    )
    deadline_days: float = Field(30.0, gt=0, description="days from receipt; then a request of an absent client fails")
    recovery_ratio: float = Field(
        0.98, gt=0, le=1, description="share of the score before unlearning at which a model has recovered"
    )
    max_recovery_rounds: int = Field(20, ge=0, description="largest number of recovery rounds")
    blind_recovery_rounds: int = Field(5, ge=0, description="recovery rounds if no client can evaluate")
    collapse_ratio: float = Field(
        0.5,
        ge=0,
        lt=1,
        description="share of the score before below which a recovered model waits for operator approval",
    )
    recovery_days: float = Field(7.0, gt=0, description="days after which recovery without enough clients ends")
    min_retained: int = Field(
        1, ge=0, description="retained updates that a PUF-Regular round needs to hide a lone target's update"
    )
    attempt_seconds: float = Field(86400.0, gt=0, description="seconds that an unlearning round waits for its targets")
    measure_seconds: float = Field(
        60.0, ge=0, description="seconds that completion waits for measurements of the target"
    )
    grace_days: float = Field(
        7.0, ge=0, description="days in which a forgotten client may fetch the models of its ticket"
    )

    @model_validator(mode="after")
    def _defaults_are_within_the_limits(self) -> Self:
        if not self.min_kappa <= self.kappa <= self.max_kappa:
            raise ValueError("kappa must lie between min_kappa and max_kappa")
        if self.max_total_kappa < self.max_kappa:
            raise ValueError("max_total_kappa must be at least max_kappa")
        if self.epochs > self.max_epochs:
            raise ValueError("epochs must not exceed max_epochs")
        if self.collapse_ratio > self.recovery_ratio:
            raise ValueError("collapse_ratio must not exceed recovery_ratio")
        if self.mode == "special" and not self.special_allowed:
            raise ValueError("mode special needs special_allowed")
        return self

    @model_validator(mode="after")
    def _methods_are_known(self) -> Self:
        if self.method != "puf" or self.method_options or self.fallback or self.also_remember or self.escalate:
            # The methods import this module.
            from puf_server.core import methods

            methods.check(self)
        return self


class Limits(_Settings):
    """Limits on clients. Most calls beyond a limit end with RESOURCE_EXHAUSTED, transfers wait, too large updates are refused."""

    max_clients: int = Field(10_000, ge=1, description="names on the roster, forgotten ones included")
    max_samples: int = Field(1_000_000_000, ge=1, le=2**40, description="samples that one client may announce")
    max_share: float = Field(
        0.8,
        gt=0,
        le=1,
        description="share of all announced samples above which a client needs `puf-server clients approve` to train; "
        "applies from three clients on",
    )
    norm_factor: float = Field(
        10.0,
        ge=0,
        description="largest ratio of an update's norm, before scaling, to recent rounds; 0: no limit",
    )
    norm_rounds: int = Field(50, ge=1, description="committed rounds that count as recent")
    max_norm: float = Field(1e6, gt=0, description="largest norm of an update before scaling, also in the first round")
    uploads: int = Field(8, ge=1, description="updates that are received at a time; further ones wait")
    uploads_per_client: int = Field(2, ge=1, description="updates that one client may send at a time")
    queued_uploads: int = Field(10_000, ge=0, description="updates that may wait")
    downloads: int = Field(8, ge=1, description="models that are sent at a time; further ones wait")
    stall_seconds: float = Field(30.0, gt=0, description="seconds without data after which an upload is ended")
    upload_rate: float = Field(
        1000.0, ge=0, description="bytes per second that an upload must reach after stall_seconds; 0: any rate"
    )
    client_bytes: int = Field(0, ge=0, description="bytes of updates that one client may have on disk; 0: four updates")
    request_bytes: int = Field(65_536, ge=4096, description="largest request in bytes, except updates and receipts")
    calls: int = Field(4096, ge=1, description="open calls, including waiting clients")
    calls_per_client: int = Field(32, ge=4, description="open calls of one client")
    streams: int = Field(128, ge=4, description="open calls of one connection")
    connections: int = Field(4096, ge=1, description="open connections")
    handshake_seconds: float = Field(10.0, gt=0, description="seconds for a handshake")
    idle_seconds: float = Field(300.0, gt=0, description="seconds after which a connection without calls is closed")
    writes_per_minute: float = Field(
        120.0, gt=0, description="joins, leaves, declined work, requests and receipts of one client per minute"
    )
    tickets_per_hour: int = Field(20, ge=1, description="requests to be forgotten of one client per hour")
    forget_share: float = Field(
        0.5, gt=0, le=1, description="share of all samples that may be forgotten without `puf-server tickets approve`"
    )
    forget_days: float = Field(7.0, gt=0, description="days over which forget_share counts")
    refusals_per_minute: float = Field(
        60.0, gt=0, description="log lines about refused calls per minute; further ones are counted"
    )


class FederationConfig(_Settings):
    """The whole configuration of a federation, without its tensors."""

    id: str
    title: str = "federation"
    model: str
    model_options: dict[str, str] = {}
    task: str = "classification"
    plugin_version: str = ""
    # SHA-256 of the frozen parameters in hex, which stay at the clients; empty: no parameter is frozen.
    base_digest: str = ""
    # The seed that built the frozen parameters.
    base_seed: int = 0
    recipe: Recipe = Recipe()
    plan: Plan = Plan()
    forgetting: Forgetting = Forgetting()
    limits: Limits = Limits()

    @model_validator(mode="after")
    def _methods_fit_the_optimizer(self) -> Self:
        if self.plan.server_optimizer != "sgd":
            # The methods import this module.
            from puf_server.core import methods

            methods.check_optimizer(self.forgetting, self.plan.server_optimizer)
        return self

    def recipe_fingerprint(self) -> bytes:
        """A hash of everything that influences what clients compute."""
        fixed = {
            "recipe": self.recipe.model_dump(mode="json"),
            "model": self.model,
            "model_options": self.model_options,
            "task": self.task,
        }
        return hashlib.sha256(json.dumps(fixed, sort_keys=True, separators=(",", ":")).encode()).digest()
