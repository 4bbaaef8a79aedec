"""Logs on stderr: coloured lines on a terminal, one JSON object per line elsewhere.

`get_logger("puf_server.engine.engine", federation="demo").info("round opened", round=3)`: an event is a short sentence
without numbers; ids (round, client, ticket) are keys. All entries pass through the standard library's logging. Warnings
of other libraries therefore have the same form, and a program that never calls `configure` keeps its own configuration.
"""

from __future__ import annotations

import logging
import math
import os
import sys
from collections.abc import Mapping, MutableMapping
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TextIO

from pydantic import BaseModel, Field

if TYPE_CHECKING:
    from structlog.stdlib import BoundLogger

LogFormat = Literal["auto", "console", "json"]
LogLevel = Literal["debug", "info", "warning", "error"]


class LogSettings(BaseModel):
    """The logging flags of every command."""

    log_format: LogFormat = Field(
        "auto", description="Form of the logs on stderr; auto is console on a terminal and json elsewhere"
    )
    log_level: LogLevel = Field("info", description="Least severe log entries to show")


def configure(
    *, log_format: LogFormat = "auto", level: LogLevel = "info", stream: TextIO | None = None, **ids: object
) -> None:
    """Sends all logs of the process to stderr (or `stream`). Another call replaces the configuration.

    `ids` belong to the process, e.g. the name of its client. Every line has them, also those of other libraries.
    """
    import structlog

    target = sys.stderr if stream is None else stream
    terminal = target.isatty()
    chain: list[Any] = [partial(_stamp, ids=ids), structlog.stdlib.ProcessorFormatter.remove_processors_meta]
    if log_format == "console" or (log_format == "auto" and terminal):
        console = structlog.dev.ConsoleRenderer(
            colors=terminal and not os.environ.get("NO_COLOR"),
            pad_event_to=28,
            timestamp_key="time",
            sort_keys=False,
            # The default formatter shows local variables. Logs must not contain tokens or data.
            exception_formatter=structlog.dev.plain_traceback,
        )
        chain += [_for_people, console]
    else:
        json_lines = structlog.processors.JSONRenderer(default=_plain, allow_nan=False)
        chain += [structlog.processors.format_exc_info, _for_programs, json_lines]
    handler = logging.StreamHandler(target)
    handler.set_name("puf")
    handler.setFormatter(structlog.stdlib.ProcessorFormatter(processors=chain))
    handler.addFilter(_ours_or_serious)
    root = logging.getLogger()
    for old in [h for h in root.handlers if h.get_name() == "puf"]:
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(level.upper())


def get_logger(name: str, **ids: object) -> BoundLogger:
    """A logger that adds these ids to every entry. `.bind(round=3)` returns one with more ids."""
    import structlog

    logger: BoundLogger = structlog.wrap_logger(
        logging.getLogger(name),
        processors=[
            structlog.stdlib.filter_by_level,
            structlog.contextvars.merge_contextvars,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        wrapper_class=structlog.stdlib.BoundLogger,
    )
    return logger.bind(**ids)


def _ours_or_serious(record: logging.LogRecord) -> bool:
    """Whether an entry is shown: all of PUF's, and other libraries' warnings and errors."""
    if record.name == "grpc._common":
        # A traceback for every message that cannot be decoded. The call that got it reports the error.
        return False
    return isinstance(record.msg, dict) or record.levelno >= logging.WARNING


def _stamp(_logger: Any, _method: str, event: MutableMapping[str, Any], *, ids: Mapping[str, object]) -> dict[str, Any]:
    record: logging.LogRecord = event["_record"]
    head = {
        "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "level": record.levelname.lower(),
        "event": event.get("event", ""),
        "logger": record.name,
    }
    return head | {**ids, **{key: value for key, value in event.items() if key not in head}}


def _for_people(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    event["time"] = datetime.fromisoformat(event["time"]).astimezone().strftime("%H:%M:%S")
    for key, value in event.items():
        # A client chooses its name. The name must not forge lines or control the terminal.
        if isinstance(value, str) and not value.isprintable():
            event[key] = repr(value)[1:-1]
    return event


def _for_programs(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> dict[str, Any]:
    """The entry with NaN and infinity as text: JSON has neither, and a diverging loss must stay readable."""
    return {key: _finite(value) for key, value in event.items()}


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {str(key): _finite(item) for key, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, list | tuple) else value


def _plain(value: object) -> object:
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value).hex()
    return str(value)
