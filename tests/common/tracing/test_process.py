"""Tracing of a process: off without `--trace`, and clear errors."""

from __future__ import annotations

import subprocess
import sys

import pytest

from puf_common.errors import UsageError
from puf_common.tracing import process
from puf_common.tracing.places import place_of_round


def test_without_a_collector_nothing_is_imported_or_sent() -> None:
    program = """
import sys
import puf_server.runtime.server, puf_client.session.session, puf_client.transport.grpc, puf_server.cli.serve
from puf_common.tracing import process
process.start("puf-server", "")
with process.span("round", None, round=1) as note:
    note(bytes=5)
print(process.active(), process.carried(), [name for name in sys.modules if name.startswith("opentelemetry")])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "None () []"


def test_a_span_that_is_off_is_always_the_same_object() -> None:
    place = place_of_round("f-test", 1)
    assert process.span("a", place) is process.span("b", place, client="anna")


@pytest.mark.parametrize("where", ["collector", "collector:4318", "ftp://collector", "http://", "tensorboard:dir"])
def test_an_address_that_is_no_collector_is_refused(where: str) -> None:
    with pytest.raises(UsageError, match="must be the address of a collector"):
        process.start("puf-server", where)


def test_the_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"pip install 'puf-fl\[otel\]'"):
        process.start("puf-server", "http://127.0.0.1:4318")


def test_one_process_has_one_collector() -> None:
    pytest.importorskip("opentelemetry.sdk", reason="install puf-fl[otel]")
    with process.traced("puf-client", "http://127.0.0.1:9"):
        process.start("puf-client", "http://127.0.0.1:9")
        with pytest.raises(UsageError, match="use one collector"):
            process.start("puf-client", "http://127.0.0.1:8")
    assert process.active() is None
