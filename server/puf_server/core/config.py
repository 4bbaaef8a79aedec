"""What the operator decides. Field descriptions are the command line's help texts."""

from __future__ import annotations

import hashlib
import json
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

__all__ = ["FederationConfig", "Forgetting", "Limits", "Plan", "Recipe"]


class _Settings(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Recipe(_Settings):
    """How clients train. Fixed for the federation's life: part of its fingerprint."""

    optimizer: Literal["sgd", "adam", "adamw"] = Field("sgd", description="local optimizer")
    lr: float = Field(0.1, gt=0, description="local learning rate of round 1")
    lr_decay: float = Field(0.998, gt=0, le=1, description="round t trains with lr * lr_decay^(t-1)")
    momentum: float = Field(0.0, ge=0, lt=1, description="momentum of sgd")
    weight_decay: float = Field(0.0, ge=0, description="weight decay of the local optimizer")
    batch_size: int = Field(32, ge=1, description="local batch size; the last, smaller batch is kept")
    epochs: int = Field(1, ge=1, description="local epochs per round")
    seed: int = Field(1, ge=0, lt=2**63, description="all random streams derive from it")
    threads: int = Field(
        1, ge=1, le=256, description="CPU threads per client; sums depend on it, so it is part of the recipe"
    )
    plain_unlearning: bool = Field(False, description="train without augmentation in unlearning rounds")
    channels_last: bool = Field(False, description="images and convolutions with channels last in memory")
    amp: bool = Field(
        False, description="compute in bfloat16 where torch's autocast finds it safe; weights stay as they are"
    )
    compile: bool = Field(False, description="let torch compile the model before training; pays off on GPUs")

    def lr_at(self, round_number: int) -> float:
        return float(self.lr * self.lr_decay ** (round_number - 1))


class Plan(_Settings):
    """How rounds run."""

    rounds: int = Field(50, ge=0, description="training rounds before the federation idles")
    min_clients: int = Field(2, ge=1, description="clients that must be alive before a round opens")
    start_clients: int = Field(
        0, ge=0, description="clients that must be alive before the first one; 0: as min_clients"
    )
    participation: float = Field(1.0, gt=0, le=1, description="share of the clients alive that takes part in a round")
    quorum: float = Field(0.5, gt=0, le=1, description="share of a round's updates that suffices at the deadline")
    deadline_seconds: float = Field(
        0.0, ge=0, description="a round may close on quorum after this long; 0: no deadline"
    )
    absent_seconds: float = Field(60.0, gt=0, description="a client silent for this long is not waited for")
    heartbeat_seconds: float = Field(5.0, gt=0, description="how often clients say that they are alive")
    server_lr: float = Field(
        1.0, gt=0, description="learning rate of the server (the paper's eta_s) in ordinary rounds"
    )
    evaluate_every: int = Field(10, ge=0, description="rounds between measurements on the clients' hold-outs; 0: never")
    survey_seconds: float = Field(600.0, gt=0, description="how long a measurement waits for clients that are alive")
    max_evaluators: int = Field(100, ge=1, description="at most this many clients measure a model")
    update_encoding: Literal["full", "f16", "bf16"] = Field(
        "full", description="how updates travel: as they are, or in half the bytes and with less precision"
    )
    keep_models: int = Field(3, ge=0, description="newest model versions to keep on disk; 0: all")
    shards: int = Field(
        0, ge=0, le=1_000_000, description="parts of the data for clients that lease theirs (--shard lease); 0: none"
    )

    @model_validator(mode="after")
    def _silence_is_longer_than_a_heartbeat(self) -> Self:
        if self.absent_seconds < 2 * self.heartbeat_seconds:
            raise ValueError("absent_seconds must be at least twice heartbeat_seconds")
        return self


class Forgetting(_Settings):
    """How the federation forgets."""

    method: str = Field("puf", description="how requests are served; `puf-server methods` lists them")
    method_options: dict[str, str] = Field({}, description="the method's own parameters, e.g. rounds=5")
    fallback: str = Field(
        "", description="method that needs no target (retrain, not) for one that is gone; empty: its request fails"
    )
    also_remember: tuple[str, ...] = Field(
        (), description="further methods whose history is kept, so that the federation can change to them"
    )
    mode: Literal["regular", "special"] = Field("regular", description="mode where a request leaves it open")
    flip: Literal["client", "server"] = Field("client", description="side that negates and scales the target's update")
    kappa: float = Field(2.0, gt=0, description="strength where a request leaves it open")
    min_kappa: float = Field(0.5, gt=0, description="weakest kappa a request may ask for")
    max_kappa: float = Field(4.0, gt=0, description="strongest kappa a request may ask for")
    max_total_kappa: float = Field(8.0, gt=0, description="sum of kappa in one round; the rest waits for the next")
    max_eta_u: float = Field(40.0, ge=0, description="largest paper-literal eta_u a request may ask for; 0 forbids it")
    epochs: int = Field(1, ge=1, description="target's local epochs in the unlearning round (E_u)")
    max_epochs: int = Field(5, ge=1, description="most local epochs a request may ask for")
    retained_rate: float = Field(1.0, gt=0, description="scale of retained updates in PUF-Regular (eta_r)")
    special_allowed: bool = Field(True, description="accept PUF-Special, which discloses a lone target's update")
    special_min_targets: int = Field(
        1,
        ge=1,
        description="PUF-Special waits for this many targets: the models disclose the sum of their updates only",
    )
    deadline_days: float = Field(30.0, gt=0, description="days from receipt until a request that was not applied fails")
    recovery_ratio: float = Field(
        0.98, gt=0, le=1, description="recovered when the score is this share of the one before"
    )
    max_recovery_rounds: int = Field(20, ge=0, description="recovery ends after this many rounds at the latest")
    blind_recovery_rounds: int = Field(5, ge=0, description="recovery rounds where nobody can measure")
    collapse_ratio: float = Field(
        0.5,
        ge=0,
        lt=1,
        description="a model that recovers to less than this share of the score before is held for the operator",
    )
    recovery_days: float = Field(7.0, gt=0, description="recovery without enough clients ends, unrecovered, after this")
    min_retained: int = Field(
        1, ge=0, description="retained updates a PUF-Regular round needs, so that it does not disclose a lone target's"
    )
    attempt_seconds: float = Field(86400.0, gt=0, description="how long an unlearning round waits for its targets")
    measure_seconds: float = Field(
        60.0, ge=0, description="how long completion waits for the leaver's own measurements"
    )
    grace_days: float = Field(7.0, ge=0, description="days a forgotten client may still fetch its ticket's models")

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
        if self.method != "puf" or self.method_options or self.fallback or self.also_remember:
            # The methods import this module.
            from puf_server.core import methods

            methods.check(self)
        return self


class Limits(_Settings):
    """What clients may use up. Beyond it a call ends with RESOURCE_EXHAUSTED and the others are served on."""

    max_clients: int = Field(10_000, ge=1, description="names on the roster, forgotten ones included")
    max_samples: int = Field(1_000_000_000, ge=1, le=2**40, description="samples that one client may announce")
    max_share: float = Field(
        0.8,
        gt=0,
        le=1,
        description="share of all announced samples at which a client trains only after `puf-server clients allow`; "
        "counts from three clients on",
    )
    norm_factor: float = Field(
        10.0,
        ge=0,
        description="an update's norm, before scaling, may be this many times that of recent rounds; 0: no such bound",
    )
    norm_rounds: int = Field(50, ge=1, description="committed rounds that count as recent")
    max_norm: float = Field(1e6, gt=0, description="largest norm of any update before scaling, also in the first round")
    uploads: int = Field(8, ge=1, description="updates that are received at a time; more wait for their turn")
    uploads_per_client: int = Field(2, ge=1, description="updates that one client may be sending at a time")
    queued_uploads: int = Field(10_000, ge=0, description="updates that may wait for their turn")
    downloads: int = Field(8, ge=1, description="models that are sent at a time; more wait for their turn")
    stall_seconds: float = Field(30.0, gt=0, description="an upload that sends nothing for this long is ended")
    upload_rate: float = Field(
        1000.0, ge=0, description="bytes per second that an upload must reach, after the stall time; 0: any"
    )
    client_bytes: int = Field(0, ge=0, description="bytes of updates that one client may have on disk; 0: four updates")
    request_bytes: int = Field(65_536, ge=4096, description="size of a request that is neither update nor receipt")
    calls: int = Field(4096, ge=1, description="calls that are open at a time, waiting clients included")
    calls_per_client: int = Field(32, ge=4, description="calls that one client may have open at a time")
    streams: int = Field(128, ge=4, description="calls that one connection may have open at a time")
    connections: int = Field(4096, ge=1, description="connections that are open at a time")
    handshake_seconds: float = Field(10.0, gt=0, description="time for a connection to become one")
    idle_seconds: float = Field(300.0, gt=0, description="a connection without calls is closed after this long")
    writes_per_minute: float = Field(
        120.0, gt=0, description="joins, departures, refusals of work, requests and receipts of one client"
    )
    tickets_per_hour: int = Field(20, ge=1, description="requests to be forgotten that one client may file")
    forget_share: float = Field(
        0.5, gt=0, le=1, description="share of all samples that may be forgotten without `puf-server tickets allow`"
    )
    forget_days: float = Field(7.0, gt=0, description="days over which forget_share is counted")
    refusals_per_minute: float = Field(60.0, gt=0, description="log lines about refused calls; the rest is counted")


class FederationConfig(_Settings):
    """Everything that makes a federation, but for its tensors."""

    id: str
    title: str = "federation"
    model: str
    model_options: dict[str, str] = {}
    task: str = "classification"
    plugin_version: str = ""
    recipe: Recipe = Recipe()
    plan: Plan = Plan()
    forgetting: Forgetting = Forgetting()
    limits: Limits = Limits()

    def recipe_fingerprint(self) -> bytes:
        """Changes with anything that changes what clients compute."""
        fixed = {
            "recipe": self.recipe.model_dump(mode="json"),
            "model": self.model,
            "model_options": self.model_options,
            "task": self.task,
        }
        return hashlib.sha256(json.dumps(fixed, sort_keys=True, separators=(",", ":")).encode()).digest()
