"""The options of each command of `puf-client`. A field is a flag, a PUF_* variable and a key of the TOML file."""

from __future__ import annotations

import re
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from puf_common.errors import UsageError
from puf_common.logging import LogSettings
from puf_common.tracing.process import TraceSettings

_FILE: dict[str, Any] = {"metavar": "FILE"}
_DIR: dict[str, Any] = {"metavar": "DIR"}
_ADDRESS: dict[str, Any] = {"metavar": "HOST:PORT"}
_LEASE = re.compile(r"lease(:\d{1,9})?")


class _Options(BaseModel):
    # Deferred, because --help needs the fields but not their validators.
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, defer_build=True)


class Secured(_Options):
    """TLS and the client's credentials. `{name}` in a path stands for the client's name."""

    tls_ca: Path | None = Field(None, description="authority of the server (PEM); enables TLS", json_schema_extra=_FILE)
    tls_cert: Path | None = Field(None, description="certificate with this client's name", json_schema_extra=_FILE)
    tls_key: Path | None = Field(None, description="the key of that certificate", json_schema_extra=_FILE)
    tls_server_name: str = Field(
        "", description="name in the server's certificate", json_schema_extra={"metavar": "HOST"}
    )
    token_file: Path | None = Field(None, description="file with this client's token", json_schema_extra=_FILE)


class Connection(Secured, LogSettings):
    """The server, and the client's name."""

    server: str = Field(
        "127.0.0.1:7300",
        description="the server's address; of several servers of a federation IP:PORT,IP:PORT",
        json_schema_extra=_ADDRESS,
    )
    name: str = Field("", description="this client's name in the federation")
    state: Path | None = Field(None, description="directory for data that must survive a run (default: the user's)")
    patience: float = Field(30.0, ge=0, description="seconds to wait for the first answer of the server")


class LocalOptions(_Options):
    """The client's data, and the user's code if the federation's model or task is not built in."""

    data: str = Field("", description="built-in dataset such as digits, or package.module:function of your code")
    data_dir: Path | None = Field(None, description="directory that the data function reads from")
    data_option: dict[str, str] = Field({}, description="option of the data function; can be repeated")
    data_seed: int = Field(0, ge=0, description="seed of the split into shards; must be equal for all clients")
    shard: str = Field(
        "0/1",
        description="part of the data: I/N, counted from 0, or lease (lease:I to ask for one) to let the server assign it",
        json_schema_extra={"metavar": "I/N"},
    )
    partition: str = Field(
        "iid", description="how the data is split: iid, dirichlet:ALPHA, hsu:ALPHA or package.module:function"
    )
    model: str = Field("", description="package.module:function that builds the model (default: the federation's)")
    task: str = Field("", description="package.module:Class with loss and metrics (default: the federation's)")
    routine: list[str] = Field(
        [], description="package.module:function that a method of the federation may ask this client to run; repeatable"
    )
    device: str = Field("auto", description="auto, cpu, cuda or cuda:N")
    memory_fraction: float | None = Field(None, gt=0, le=1, description="largest share of a GPU's memory")
    plugin_version: str = Field("", description="version of your code, if the federation requires one")

    @field_validator("shard")
    @classmethod
    def _is_a_part_of_a_whole(cls, text: str) -> str:
        if _LEASE.fullmatch(text):
            return text
        part, slash, whole = text.partition("/")
        if not (slash and part.isdecimal() and whole.isdecimal() and int(part) < int(whole)):
            raise ValueError(f"{text!r} must be I/N with I from 0 to N-1, e.g. 3/10, or lease")
        return text

    @property
    def leases(self) -> bool:
        """Whether the server assigns the shard."""
        return _LEASE.fullmatch(self.shard) is not None

    @property
    def wish(self) -> int | None:
        """The shard that the client asks for, if it names one."""
        part = self.shard.partition(":")[2]
        return int(part) if self.leases and part else None

    @property
    def shard_of(self) -> tuple[int, int]:
        """The shard and the number of shards."""
        if self.leases:
            raise UsageError("the server leases a shard only to a running client; name the shard with --shard I/N")
        part, _, whole = self.shard.partition("/")
        return int(part), int(whole)


class RunOptions(LocalOptions, Connection, TraceSettings):
    """Take part in a federation."""

    rejoin: bool = Field(False, description="join again after the client was forgotten and the operator readmitted it")
    added_samples: int = Field(
        0, ge=0, description="number of new samples, to announce more samples after some were forgotten"
    )
    distiller: bool = Field(
        False,
        description="provide unlabeled public data for methods that distill (fukd): no training, labels are not read",
    )


class UnlearnOptions(LocalOptions, Connection, TraceSettings):
    """Ask to be forgotten."""

    forget: Path | None = Field(None, description="sample ids or group:NAME, one per line (default: the whole client)")
    forget_class: list[int] = Field(
        [], description="forget all samples of this class number; repeatable; instead of --forget"
    )
    mode: Literal["regular", "special"] | None = Field(None, description="how to forget (default: the federation's)")
    strength: Literal["auto", "fixed"] | None = Field(
        None,
        description="auto: several rounds, each as strong as its measured effect requires; fixed: one round with kappa "
        "(default: the federation's)",
    )
    kappa: float | None = Field(
        None, gt=0, description="fixed strength, independent of this client's share of the data"
    )
    eta_u: float | None = Field(None, gt=0, description="the paper's unlearning rate, instead of kappa")
    unlearn_epochs: int | None = Field(None, ge=1, description="local epochs of the unlearning round")
    flip: Literal["client", "server"] | None = Field(None, description="side that negates the update")
    reference: str = Field("", max_length=200, description="case number or similar text; stored and shown")
    received: datetime | None = Field(
        None, description="date of the request; starts the deadline", json_schema_extra={"metavar": "DATE"}
    )
    receipt_dir: Path = Field(Path(), description="directory for the receipt (default: .)", json_schema_extra=_DIR)
    yes: bool = Field(False, description="do not ask for confirmation")
    same_data: bool = Field(
        False, description="confirm that the data is that of training, if the state directory has no record of it"
    )
    dry_run: bool = Field(False, description="perform all checks and show the request, without filing it")

    @model_validator(mode="after")
    def _names_samples_once(self) -> Self:
        if self.forget is not None and self.forget_class:
            raise ValueError("--forget and --forget-class both name the samples: give one of them")
        return self

    @property
    def names_samples(self) -> bool:
        """Whether the request is for samples, not for the whole client."""
        return self.forget is not None or bool(self.forget_class)

    @model_validator(mode="after")
    def _has_one_strength(self) -> Self:
        if self.kappa is not None and self.eta_u is not None:
            raise ValueError("--kappa and --eta-u both set the strength: give one of them")
        if self.strength == "auto" and (self.kappa is not None or self.eta_u is not None):
            raise ValueError("--kappa and --eta-u set a fixed strength: leave out --strength auto")
        if self.strength == "auto" and self.mode == "special":
            raise ValueError("--strength auto needs the mode regular: the effect is measured over several rounds")
        return self


class StatusOptions(Connection):
    """Show this client's requests."""


class WithdrawOptions(Connection):
    """Withdraw a request before its round has begun."""

    yes: bool = Field(False, description="do not ask for confirmation")


class DataOptions(LocalOptions, Connection):
    """List samples, look one up, or name forgotten samples again."""

    forget: Path | None = Field(None, description="exclude: file with sample ids or group:NAME, one per line")


class ReceiptOptions(Connection, TraceSettings):
    """Fetch the signed receipt of a completed request."""

    receipt_dir: Path = Field(Path(), description="directory for the receipt (default: .)", json_schema_extra=_DIR)


class PresentOptions(Connection):
    """Present a receipt to a server that may have been restored from an older backup."""


class VerifyOptions(_Options):
    """Check a receipt without a network."""

    key: str = Field("", description="key or fingerprint of the signer, or a file with one (default: the pinned key)")
    state: Path | None = Field(None, description="state directory with the pinned key (default: the user's)")


class CheckOptions(LocalOptions, Secured, LogSettings):
    """Try data, model and device before joining."""

    server: str = Field("", description="compare with this federation", json_schema_extra=_ADDRESS)
    patience: float = Field(30.0, ge=0, description="seconds to wait for the first answer of the server")
    model_option: dict[str, str] = Field({}, description="option of the model, if no server is named")
    batch_size: int = Field(32, ge=1, description="batch size of the trial step, if no server is named")


class ModelOptions(_Options):
    """Write an initial model file."""

    model: str = Field("digits-cnn", description="built-in model, or package.module:function of your code")
    model_option: dict[str, str] = Field({}, description="option of the model; can be repeated")
    seed: int = Field(1, ge=0, description="seed of the initial weights")
    out: Path = Field(description="safetensors file to write", json_schema_extra=_FILE)


class InitOptions(_Options):
    """Write a configuration and a task to start from."""

    directory: Path = Field(Path(), description="directory for the files", json_schema_extra=_DIR)


class EnrollOptions(_Options):
    """Create a key and a certificate request."""

    name: str = Field("", description="this client's name in the federation")
    dir: Path = Field(Path("certs"), description="directory for key and request", json_schema_extra=_DIR)
    renew: bool = Field(False, description="write a new request for the existing key")
    through: Path | None = Field(
        None,
        description="directory that an authority watches (puf-server certs watch): submit the request and wait for the answer",
        json_schema_extra=_DIR,
    )
    patience: float = Field(120.0, ge=0, description="seconds to wait for the answer")


class FleetOptions(RunOptions):
    """Start many clients on this machine."""

    clients: int = Field(ge=1, description="number of clients: client-0 to client-(N-1), each with its shard")
    leave_out: list[int] = Field([], description="shards without a client")
    log_dir: Path | None = Field(None, description="directory for one log file per client")


# The commands share one file: each accepts the keys of the others.
EVERYTHING = (RunOptions, EnrollOptions, UnlearnOptions, WithdrawOptions, CheckOptions, FleetOptions)
