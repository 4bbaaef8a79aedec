"""What `puf-server serve` can be told."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from puf_common.errors import UsageError

__all__ = ["ServeSettings", "run"]


class ServeSettings(BaseModel):
    """How to serve a federation."""

    model_config = ConfigDict(extra="forbid")

    state: Path = Field(description="the federation's state directory")
    listen: str = Field("127.0.0.1:7300", description="address for clients; port 0 takes a free one")
    operator: str = Field("127.0.0.1:7301", description="address for operator commands; keep it on this machine")
    insecure: bool = Field(False, description="serve without TLS: everybody is who they say they are")
    announce: Path | None = Field(None, description="file that gets both port numbers once the server listens")
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="least important log lines to show"
    )
    log_format: Literal["auto", "console", "json"] = Field("auto", description="auto: console on a terminal, else JSON")


def run(settings: ServeSettings) -> None:
    if not settings.insecure:
        raise UsageError("serving without TLS must be asked for by name: add --insecure")
    from puf_common.logging import configure, get_logger
    from puf_server.serve import Listeners, serve

    configure(level=settings.log_level, log_format=settings.log_format)
    get_logger(__name__).warning("serving without TLS: anybody who reaches the port can act as any client")
    serve(settings.state, Listeners(settings.listen, settings.operator), settings.announce)
