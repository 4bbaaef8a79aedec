"""A federation over a slow, lossy link between hosts, with one client behind an HTTP CONNECT proxy."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest
from tests.e2e import hosts
from tests.e2e.test_mtls import DATA, SECONDS, Companies, serving

from puf_common.config.exit_codes import Exit
from puf_lab.federations.processes import Process, program, wait_until

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(not hosts.long_lines_available(), reason="no network namespaces here, or no /dev/net/tun"),
]

PROXY = "10.99.0.1:3128"
# The server's second address: only the proxy's host has a route to it.
INSIDE = "10.99.1.1"
# In each direction. A connection needs one packet in each direction before it can be used.
DELAY, LOSS = 0.02, 0.02
CONNECT_SECONDS = """
import socket, sys, time
started = time.monotonic()
socket.create_connection((sys.argv[1], 7300), 60).close()
print(time.monotonic() - started)
"""


def test_a_federation_over_a_lossy_link_and_a_proxy(tmp_path: Path) -> None:
    c = Companies(tmp_path)
    plan = ["--plan-rounds", "3", "--plan-start-clients", "3", "--plan-shards", "3", "--plan-heartbeat-seconds", "1"]
    c.done("puf-server", "init", "--state", "state", *plan, "--forgetting-max-recovery-rounds", "1")
    c.done("puf-server", "certs", "init")
    c.done("puf-server", "certs", "server", "--name", "10.99.0.1", "--name", INSIDE)
    names = ["anna", "bert", "cleo"]
    for name in names:
        c.done("puf-client", "enroll", "--name", name, "--dir", "site")
        c.done("puf-server", "certs", "sign", f"site/{name}.csr", "--name", name)
    tls = ["--tls-cert", "certs/server.crt", "--tls-key", "certs/server.key", "--client-ca", "certs/ca.crt"]

    def flags(name: str) -> list[str]:
        own = ["--tls-cert", f"certs/clients/{name}.crt", "--tls-key", f"site/{name}.key", "--tls-ca", "certs/ca.crt"]
        return [*own, "--shard", "lease", "--state", "clients", *DATA]

    line = hosts.far_apart(["10.99.0.1"], ["10.99.0.2"], tmp_path / "line.log", delay=DELAY, loss=LOSS)
    with line as (here, there, between):
        here.ip("address", "add", f"{INSIDE}/32", "dev", "lo")
        proxied = {"grpc_proxy": f"http://{PROXY}", "no_proxy": ""}

        def client(name: str, server: str, env: dict[str, str] | None = None) -> Process:
            words = [*there.enter, program("puf-client"), "run", "--server", server, *flags(name)]
            return Process([str(shutil.which(words[0])), *words[1:]], tmp_path / f"{name}.log", cwd=tmp_path, env=env)

        proxy = [*here.enter, sys.executable, str(Path(__file__).with_name("connect_proxy.py")), PROXY, "0.02"]
        with (
            serving(c, here, *tls),
            Process([str(shutil.which(proxy[0])), *proxy[1:]], tmp_path / "proxy.log") as proxy_process,
            client("anna", "10.99.0.1:7300") as anna,
            client("bert", "10.99.0.1:7300") as bert,
        ):
            wait_until(lambda: "listening" in proxy_process.log.read_text(), SECONDS, proxy_process)
            with client("cleo", f"{INSIDE}:7300", proxied) as cleo:

                def idle() -> bool:
                    done = c.do(*here.enter, program("puf-server"), "status", "--json", "--state", "state")
                    return '"PHASE_IDLE"' in done.out

                wait_until(idle, SECONDS, anna, bert, cleo)
                # All traffic went over the link, and the link has the stated delay and loss.
                assert float(c.done(*there.enter, sys.executable, "-c", CONNECT_SECONDS, "10.99.0.1")) >= 2 * DELAY
                assert "lost" in between.log.read_text()
                assert f"CONNECT {INSIDE}:7300" in proxy_process.log.read_text()
                words = [*there.enter, "env", *(f"{k}={v}" for k, v in proxied.items()), program("puf-client")]
                finished = c.do(*words, "--unlearn", "--yes", "--server", f"{INSIDE}:7300", *flags("cleo"))
                assert finished.code == Exit.OK, finished
                assert "request of cleo was applied" in finished.out
                assert cleo.wait(SECONDS) == Exit.FORGOTTEN
                # Without the proxy there is no route.
                direct = c.do(*there.enter, program("puf-client"), "status", "--server", f"{INSIDE}:7300",
                              "--patience", "1", *flags("cleo")[:6])  # fmt: skip
                assert direct.code == Exit.UNREACHABLE, direct
