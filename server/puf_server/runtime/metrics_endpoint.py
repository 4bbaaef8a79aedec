"""`/metrics` over HTTP on a separate address, so that the scraper reaches nothing else."""

from __future__ import annotations

from wsgiref.simple_server import WSGIServer

from prometheus_client import CollectorRegistry, start_http_server

from puf_common.errors import UsageError
from puf_common.network.addresses import parse_address


class MetricsEndpoint:
    """An HTTP server in a thread that serves one registry until `close`."""

    def __init__(self, registry: CollectorRegistry, address: str) -> None:
        host, port = parse_address(address, "--metrics", free_port=True)
        try:
            server, thread = start_http_server(port, host, registry)
        except OSError as error:
            raise UsageError(f"cannot listen on {address} for --metrics: {error.strerror}") from None
        self._server: WSGIServer = server
        self._thread = thread
        self.port: int = server.server_port

    def close(self) -> None:
        """Stops the server. Blocks until its thread has ended."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
