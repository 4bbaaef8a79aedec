"""Tracing of this process, off by default. Like logging it belongs to the process, so no call needs a tracer.

Without `start` a span costs one comparison, and OpenTelemetry is not imported.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from importlib.util import find_spec
from typing import TYPE_CHECKING, Protocol
from urllib.parse import urlsplit

from pydantic import BaseModel, Field

from puf_common.errors import UsageError
from puf_common.tracing.places import TRACEPARENT, Place

if TYPE_CHECKING:
    from puf_common.tracing.tracer import Tracer, Value


class TraceSettings(BaseModel):
    """The tracing flag of server and client."""

    trace: str = Field(
        "",
        description="send OpenTelemetry traces to this collector (OTLP over HTTP), e.g. http://127.0.0.1:4318",
        json_schema_extra={"metavar": "URL"},
    )


class Note(Protocol):
    """Adds attributes to a span: `note(bytes=5)` sets `puf.bytes`."""

    def __call__(self, **attributes: Value) -> None: ...


_lock = threading.Lock()
_active: tuple[str, Tracer] | None = None


def start(service: str, where: str) -> None:
    """Sends the spans of this process to a collector. Does nothing for an empty address or for the same again."""
    global _active
    if not where:
        return
    if urlsplit(where).scheme not in ("http", "https") or not urlsplit(where).hostname:
        raise UsageError(f"--trace {where!r} must be the address of a collector, such as http://127.0.0.1:4318")
    if find_spec("opentelemetry") is None or find_spec("opentelemetry.sdk") is None:
        raise UsageError("--trace needs OpenTelemetry: pip install 'puf-fl[otel]'")
    with _lock:
        if _active is not None and _active[0] != where:
            raise UsageError(f"this process already sends its traces to {_active[0]}: use one collector")
        if _active is None:
            from puf_common.tracing.tracer import Tracer, exporter_to

            _active = where, Tracer(service, exporter_to(where))


def use(tracer: Tracer) -> None:
    """Uses a tracer that was made before."""
    global _active
    with _lock:
        _active = "", tracer


def stop() -> None:
    """Exports what is left, which takes some seconds at most, and ends tracing."""
    global _active
    with _lock:
        ended, _active = _active, None
    if ended is not None:
        ended[1].close()


def flush() -> None:
    """Exports what is left, which takes some seconds at most. Tracing goes on."""
    tracer = active()
    if tracer is not None:
        tracer.flush()


@contextmanager
def traced(service: str, where: str) -> Iterator[None]:
    """Traces the block, if there is a collector's address."""
    start(service, where)
    try:
        yield
    finally:
        stop()


def active() -> Tracer | None:
    """The tracer of this process; None if tracing is off."""
    return _active[1] if _active is not None else None


def span(name: str, parent: Place | None, **attributes: Value) -> AbstractContextManager[Note]:
    """A span of the block below `parent`. Its attributes get the prefix `puf.`. Does nothing without a parent."""
    tracer = active()
    return _noted(tracer, name, parent, attributes) if tracer is not None and parent is not None else _OFF


def past(name: str, parent: Place, begun: float, **attributes: Value) -> None:
    """A span from `begun` until now, below `parent`."""
    tracer = active()
    if tracer is not None:
        tracer.record(name, begun, prefixed(attributes), parent=parent)


@contextmanager
def _noted(tracer: Tracer, name: str, parent: Place, attributes: dict[str, Value]) -> Iterator[Note]:
    with tracer.span(name, parent, prefixed(attributes)) as made:
        yield lambda **more: made.set_attributes(prefixed(more))


def prefixed(attributes: dict[str, Value]) -> dict[str, Value]:
    return {f"puf.{name}": value for name, value in attributes.items()}


def here() -> Place | None:
    """The innermost span of this thread or task; None outside a span."""
    tracer = active()
    return tracer.here() if tracer is not None else None


def carried() -> tuple[tuple[str, str], ...]:
    """The metadata for a call to the server: the place of the current span."""
    tracer = active()
    text = tracer.carried() if tracer is not None else ""
    return ((TRACEPARENT, text),) if text else ()


def _nothing(**attributes: Value) -> None:
    """Takes attributes while tracing is off."""


_OFF: AbstractContextManager[Note] = nullcontext(_nothing)
