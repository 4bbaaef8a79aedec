"""What a process says about its collector."""

from __future__ import annotations

import logging

import pytest

pytest.importorskip("opentelemetry.sdk", reason="install puf-fl[otel]")

from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from puf_common.tracing.tracer import ReportedExporter

FAILURE, SUCCESS = SpanExportResult.FAILURE, SpanExportResult.SUCCESS


class Collector(SpanExporter):
    """Answers with these results, one after the other."""

    def __init__(self, *results: SpanExportResult) -> None:
        self._results = iter(results)

    def export(self, spans: object) -> SpanExportResult:
        return next(self._results)


def test_a_collector_that_fails_is_logged_once_and_so_is_its_return(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    results = (SUCCESS, FAILURE, FAILURE, SUCCESS, SUCCESS)
    exporter = ReportedExporter(Collector(*results), "http://127.0.0.1:4318")
    assert tuple(exporter.export([]) for _ in results) == results
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]
    assert "does not take traces" in caplog.text
    assert "takes traces again" in caplog.text
