"""`Tracer`: makes spans and exports them. The only module that imports OpenTelemetry; loaded only for `--trace`."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.id_generator import IdGenerator, RandomIdGenerator
from opentelemetry.sdk.trace.sampling import Decision
from opentelemetry.trace import Link, NonRecordingSpan, SpanContext, Status, StatusCode, TraceFlags

from puf_common.logging import get_logger
from puf_common.tracing.places import Place
from puf_common.version import VERSION

log = get_logger(__name__)

Value = str | int | float | bool | Sequence[str]

# How long the end of a process waits for a collector.
_EXPORT_SECONDS = 5.0
# The ids of the next span, where they are not random.
_next: ContextVar[Place | None] = ContextVar("puf_next_span", default=None)
# The span that the calls of this thread or task belong to.
_current: ContextVar[Place | None] = ContextVar("puf_current_span", default=None)


def exporter_to(where: str) -> SpanExporter:
    """An exporter for OTLP over HTTP to a collector's address, such as http://collector:4318."""
    # It logs every attempt. `ReportedExporter` says once that the collector does not answer.
    logging.getLogger("opentelemetry.exporter").setLevel(logging.CRITICAL)
    return ReportedExporter(OTLPSpanExporter(endpoint=f"{where.rstrip('/')}/v1/traces", timeout=_EXPORT_SECONDS), where)


class ReportedExporter(SpanExporter):
    """Logs when a collector stops taking spans, and when it takes them again."""

    def __init__(self, exporter: SpanExporter, where: str) -> None:
        self._exporter, self._where, self._works = exporter, where, True

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        result = self._exporter.export(spans)
        works = result is SpanExportResult.SUCCESS
        if works != self._works:
            self._works = works
            if works:
                log.info("the collector takes traces again", collector=self._where)
            else:
                log.warning("the collector does not take traces; they are dropped meanwhile", collector=self._where)
        return result

    def shutdown(self) -> None:
        self._exporter.shutdown()


class Tracer:
    """Spans of one process. Finished spans are exported by a thread of their own."""

    def __init__(self, service: str, exporter: SpanExporter) -> None:
        resource = Resource.create({"service.name": service, "service.version": VERSION})
        self._provider = TracerProvider(resource=resource, id_generator=_ChosenIds())
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("puf", VERSION)

    @contextmanager
    def span(self, name: str, parent: Place, attributes: Mapping[str, Value]) -> Iterator[trace.Span]:
        """A span that lasts as long as the block. Calls in the block carry its place."""
        made = self._tracer.start_span(name, self._below(parent), attributes=attributes)
        before = _current.get()
        context = made.get_span_context()
        _current.set(Place(context.trace_id, context.span_id))
        try:
            yield made
        except BaseException as error:
            # The type only: a message may name data.
            made.set_status(Status(StatusCode.ERROR, type(error).__name__))
            raise
        finally:
            _current.set(before)
            made.end()

    def record(
        self,
        name: str,
        begun: float,
        attributes: Mapping[str, Value],
        *,
        parent: Place | None = None,
        at: Place | None = None,
        ended: float | None = None,
        links: Sequence[Place] = (),
    ) -> None:
        """Makes a span of the past, from `begun` to `ended` or now. `at` is its place, if others refer to it."""
        token = _next.set(at)
        try:
            context = self._below(parent) if parent is not None else Context()
            start = int(begun * 1e9)
            linked = [Link(self._context(place)) for place in links]
            made = self._tracer.start_span(name, context, attributes=attributes, start_time=start, links=linked)
            made.end(int((time.time() if ended is None else ended) * 1e9))
        finally:
            _next.reset(token)

    def here(self) -> Place | None:
        """The innermost span of this thread or task."""
        return _current.get()

    def carried(self) -> str:
        """The header `traceparent` for a call of this thread or task; empty outside a span."""
        place = _current.get()
        return place.written(sampled=self._samples(place)) if place is not None else ""

    def flush(self) -> None:
        self._provider.force_flush(int(_EXPORT_SECONDS * 1000))

    def close(self) -> None:
        self._provider.shutdown()

    def _below(self, parent: Place) -> Context:
        return trace.set_span_in_context(NonRecordingSpan(self._context(parent)), Context())

    def _context(self, place: Place) -> SpanContext:
        flags = TraceFlags(TraceFlags.SAMPLED if self._samples(place) else TraceFlags.DEFAULT)
        return SpanContext(place.trace, place.span, is_remote=True, trace_flags=flags)

    def _samples(self, place: Place) -> bool:
        """Whether the process exports this trace. Processes with the same sampling ratio decide alike."""
        return self._provider.sampler.should_sample(None, place.trace, "puf").decision is Decision.RECORD_AND_SAMPLE


class _ChosenIds(IdGenerator):
    """Random ids, except for a span whose place is chosen."""

    def __init__(self) -> None:
        self._random = RandomIdGenerator()

    def generate_span_id(self) -> int:
        place = _next.get()
        return place.span if place is not None else self._random.generate_span_id()

    def generate_trace_id(self) -> int:
        place = _next.get()
        return place.trace if place is not None else self._random.generate_trace_id()
