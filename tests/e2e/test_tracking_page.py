"""The commands of the page on tracking work as written: TensorBoard's event files, and spans at a collector."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from tests.e2e.federation import SECONDS
from tests.e2e.pasting import Terminal, commands

from puf_common.config.exit_codes import Exit
from puf_lab.federations.processes import wait_until

pytestmark = pytest.mark.e2e


def test_the_commands_of_the_page_work(tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX", reason="install puf-fl[tensorboard]")
    pytest.importorskip("opentelemetry.sdk", reason="install puf-fl[otel]")
    pasted = commands((Path(__file__).parents[2] / "docs" / "tracking.md").read_text())
    assert any("--track" in line for line in pasted)
    with ExitStack() as stack:
        collector = stack.enter_context(Collector())
        terminal = Terminal(tmp_path, stack)
        for line in pasted:
            done = terminal.paste(line.replace("http://127.0.0.1:4318", collector.address))
            assert done is None or done.code == Exit.OK, f"{line}\n{done.out}{done.err}"
            if line.startswith("puf-server serve"):
                [server] = terminal.running.values()
                wait_until(lambda: '"serving"' in server.log.read_text(), SECONDS, server)  # noqa: B023
        for process in terminal.running.values():
            assert process.wait(SECONDS) == Exit.OK
    [written] = (tmp_path / "board").glob("f-*/events.out.tfevents.*")
    assert b"round/seconds" in written.read_bytes()
    _check_traces(collector)


def _check_traces(collector: Collector) -> None:
    """One trace of a round, and one of the request, with spans of server and clients."""
    assert {service for _, service, _ in collector.spans} == {"puf-server", "puf-client"}
    traces: dict[bytes, set[str]] = {}
    for trace, _, name in collector.spans:
        traces.setdefault(trace, set()).add(name)
    rounds = [names for names in traces.values() if "round" in names]
    both = {"round", "round.updates", "round.fold", "round.commit", "client.train", "client.upload", "server.upload"}
    assert len(rounds) >= 3
    assert sum(both <= names for names in rounds) >= 3
    [request] = [names for names in traces.values() if "ticket" in names]
    assert {"ticket.pending", "client.file", "client.follow", "client.receipt", "server.receipt"} <= request


class Collector(ThreadingHTTPServer):
    """A receiver of OTLP over HTTP. `spans` has the trace, the service and the name of each span."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Receiver)
        self.address = f"http://127.0.0.1:{self.server_port}"
        self.spans: list[tuple[bytes, str, str]] = []

    def __enter__(self) -> Collector:
        threading.Thread(target=self.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()


class _Receiver(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

        body = self.rfile.read(int(self.headers["Content-Length"]))
        found = ExportTraceServiceRequest.FromString(body) if self.path == "/v1/traces" else None
        for resource in found.resource_spans if found is not None else ():
            service = {a.key: a.value.string_value for a in resource.resource.attributes}["service.name"]
            spans = [span for scope in resource.scope_spans for span in scope.spans]
            assert isinstance(self.server, Collector)
            self.server.spans += [(span.trace_id, service, span.name) for span in spans]
        self.send_response(200 if found is not None else 404)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Writes nothing."""
