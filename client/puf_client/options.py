"""What each command of `puf-client` can be told. A field is a flag, a PUF_* variable and a key of the TOML file."""

from __future__ import annotations

import re
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from puf_common.errors import UsageError
from puf_common.logging import LogSettings

__all__ = [
    "EVERYTHING",
    "CheckOptions",
    "Connection",
    "DataOptions",
    "EnrollOptions",
    "FleetOptions",
    "InitOptions",
    "LocalOptions",
    "ModelOptions",
    "PresentOptions",
    "ReceiptOptions",
    "RunOptions",
    "Secured",
    "StatusOptions",
    "UnlearnOptions",
    "VerifyOptions",
    "WithdrawOptions",
]


_FILE: dict[str, Any] = {"metavar": "FILE"}
_LEASE = re.compile(r"lease(:\d{1,9})?")


class _Options(BaseModel):
    # Deferred: who asks for help needs the fields and not their validators.
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, defer_build=True)


class Secured(_Options):
    """TLS, and what this client shows of itself. `{name}` in a path stands for the client's name."""

    tls_ca: Path | None = Field(
        None, description="authority of the server's certificate, in PEM; turns TLS on", json_schema_extra=_FILE
    )
    tls_cert: Path | None = Field(None, description="this client's certificate: its identity", json_schema_extra=_FILE)
    tls_key: Path | None = Field(None, description="the key of that certificate", json_schema_extra=_FILE)
    tls_server_name: str = Field(
        "",
        description="name in the server's certificate, if not the one dialled",
        json_schema_extra={"metavar": "HOST"},
    )
    token_file: Path | None = Field(
        None,
        description="file with this client's token, where the server knows clients by tokens",
        json_schema_extra=_FILE,
    )


class Connection(Secured, LogSettings):
    """Which federation, and as whom."""

    server: str = Field(
        "127.0.0.1:7300", description="the server's address", json_schema_extra={"metavar": "HOST:PORT"}
    )
    name: str = Field("", description="this client's name in the federation")
    state: Path | None = Field(
        None, description="directory for what must outlive a run (default: the user's state directory)"
    )
    patience: float = Field(30.0, ge=0, description="seconds to wait for a server that never answered")


class LocalOptions(_Options):
    """What this client brings: data, and code of its own where the federation's model or task is not built in."""

    data: str = Field("", description="built-in dataset such as digits, or package.module:function of your own code")
    data_dir: Path | None = Field(None, description="directory the data function reads from")
    data_option: dict[str, str] = Field({}, description="option of the data function; may be repeated")
    data_seed: int = Field(0, ge=0, description="seed of the split into shards; the same for all clients")
    shard: str = Field(
        "0/1",
        description="which part of the data: I/N, counted from 0, or lease (lease:I for a wish) to have the server give one",
        json_schema_extra={"metavar": "I/N"},
    )
    partition: str = Field("iid", description="how data is split: iid, dirichlet:ALPHA or hsu:ALPHA")
    model: str = Field(
        "", description="package.module:function that builds the model (default: what the federation names)"
    )
    task: str = Field("", description="package.module:Class with loss and metrics (default: what the federation names)")
    device: str = Field("auto", description="auto, cpu, cuda or cuda:N")
    memory_fraction: float | None = Field(
        None, gt=0, le=1, description="most of a GPU's memory this client may take, where several share it"
    )
    plugin_version: str = Field("", description="version of your own code, where the federation asks for one")

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
        """Whether the server says which part it is."""
        return _LEASE.fullmatch(self.shard) is not None

    @property
    def wish(self) -> int | None:
        part = self.shard.partition(":")[2]
        return int(part) if self.leases and part else None

    @property
    def shard_of(self) -> tuple[int, int]:
        if self.leases:
            raise UsageError("a shard is leased when the client runs; say which one is meant here with --shard I/N")
        part, _, whole = self.shard.partition("/")
        return int(part), int(whole)


class RunOptions(LocalOptions, Connection):
    """Take part in a federation."""

    rejoin: bool = Field(False, description="join anew after having been forgotten and readmitted by the operator")
    distiller: bool = Field(
        False,
        description="bring unlabeled public data for methods that distill (fukd): labels are not read, nothing is trained",
    )


class UnlearnOptions(LocalOptions, Connection):
    """Ask to be forgotten."""

    forget: Path | None = Field(
        None, description="file with sample ids or group:NAME, one per line (default: the whole client)"
    )
    mode: Literal["regular", "special"] | None = Field(None, description="how to forget (default: the federation's)")
    kappa: float | None = Field(None, gt=0, description="strength, whatever this client's share of the data")
    eta_u: float | None = Field(None, gt=0, description="the paper's literal unlearning rate, instead of kappa")
    unlearn_epochs: int | None = Field(None, ge=1, description="local epochs of the unlearning round")
    flip: Literal["client", "server"] | None = Field(None, description="side that negates the update")
    reference: str = Field("", max_length=200, description="case number or the like; stored and shown")
    received: datetime | None = Field(
        None,
        description="when the request reached you; the deadline counts from here",
        json_schema_extra={"metavar": "DATE"},
    )
    receipt_dir: Path = Field(
        Path(), description="where the receipt is written (default: here)", json_schema_extra={"metavar": "DIR"}
    )
    yes: bool = Field(False, description="do not ask for confirmation")
    dry_run: bool = Field(False, description="show what would be asked, and stop")

    @model_validator(mode="after")
    def _has_one_strength(self) -> Self:
        if self.kappa is not None and self.eta_u is not None:
            raise ValueError("--kappa and --eta-u are two ways to say the same: give one of them")
        return self


class StatusOptions(Connection):
    """Show this client's own requests."""


class WithdrawOptions(Connection):
    """Take a request back before its round has begun."""

    yes: bool = Field(False, description="do not ask for confirmation")


class DataOptions(LocalOptions, Connection):
    """Look up a sample, or name forgotten ones again."""

    forget: Path | None = Field(
        None, description="exclude: file with the ticket's sample ids or group:NAME, one per line"
    )


class ReceiptOptions(Connection):
    """Fetch the signed receipt of a completed request."""

    receipt_dir: Path = Field(
        Path(), description="where the receipt is written (default: here)", json_schema_extra={"metavar": "DIR"}
    )


class PresentOptions(Connection):
    """Show a receipt to a server that may have been restored from an older backup."""


class VerifyOptions(_Options):
    """Check a receipt without any network."""

    key: str = Field(
        "",
        description="public key or fingerprint that must have signed it, or a file with one (default: the pinned key)",
    )
    state: Path | None = Field(None, description="state directory with the pinned key (default: the user's)")


class CheckOptions(LocalOptions, Secured, LogSettings):
    """Try data, model and device before joining."""

    server: str = Field("", description="compare with this federation", json_schema_extra={"metavar": "HOST:PORT"})
    patience: float = Field(30.0, ge=0, description="seconds to wait for a server that never answered")
    model_option: dict[str, str] = Field({}, description="option of the built-in model, where no server names them")
    batch_size: int = Field(32, ge=1, description="batch size of the trial step, where no server names it")


class ModelOptions(_Options):
    """Write an initial model file."""

    model: str = Field("digits-cnn", description="built-in model, or package.module:function of your own code")
    model_option: dict[str, str] = Field({}, description="option of the model; may be repeated")
    seed: int = Field(1, ge=0, description="seed of the initial weights")
    out: Path = Field(description="safetensors file to write", json_schema_extra={"metavar": "FILE"})


class InitOptions(_Options):
    """Write a configuration and a task to start from."""

    directory: Path = Field(Path(), description="where to write", json_schema_extra={"metavar": "DIR"})


class EnrollOptions(_Options):
    """Make a key, and ask for a certificate."""

    name: str = Field("", description="this client's name in the federation")
    dir: Path = Field(Path("certs"), description="where to write key and request", json_schema_extra={"metavar": "DIR"})
    renew: bool = Field(False, description="a new request for the key that is there")
    through: Path | None = Field(
        None,
        description="directory that an authority watches (puf-server certs watch): hand the request in and wait for the answer",
        json_schema_extra={"metavar": "DIR"},
    )
    patience: float = Field(120.0, ge=0, description="seconds to wait for the answer there")


class FleetOptions(RunOptions):
    """Start many clients on this machine."""

    clients: int = Field(ge=1, description="how many: client-0 to client-(N-1), each with its shard")
    leave_out: list[int] = Field([], description="shards that get no client")
    log_dir: Path | None = Field(None, description="directory for one log file per client")


# The commands share one file; a key of one is not unknown to another.
EVERYTHING = (RunOptions, EnrollOptions, UnlearnOptions, WithdrawOptions, CheckOptions, FleetOptions)
