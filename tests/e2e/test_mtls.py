"""A federation of companies: real processes, certificates made by the commands, one client is forgotten."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.e2e import hosts
from tests.e2e.federation import Finished, command, environment
from tests.pki import date_back

from puf_common.config.exit_codes import Exit
from puf_common.v1 import federation_pb2 as fed
from puf_common.v1 import tickets_pb2 as tk
from puf_lab.federations.processes import Process, program, wait_until
from puf_server.cli.operator_client import OperatorClient
from puf_server.pki.authority import Authority

pytestmark = pytest.mark.e2e

SECONDS = 90.0
DATA = ["--data", "digits", "--data-option", "per_client=20", "--device", "cpu", "--log-format", "json"]


class Companies:
    """The machines of the operator and of the clients, as directories."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.certs, self.site, self.state = directory / "certs", directory / "site", directory / "state"
        self.address = ""

    def do(self, *words: str) -> Finished:
        return command(words, env=environment(self.directory / "home"), cwd=self.directory)

    def done(self, *words: str) -> str:
        finished = self.do(*words)
        assert finished.code == Exit.OK, finished
        return finished.out

    def start(self, label: str, *words: str) -> Process:
        return Process([program(words[0]), *words[1:]], self.directory / f"{label}.log", cwd=self.directory)

    def to_server(self, cert: str, key: str, ca: str = "certs/ca.crt") -> list[str]:
        return ["--server", self.address, "--tls-ca", ca, "--tls-cert", cert, "--tls-key", key]


def test_a_federation_over_mtls(tmp_path: Path) -> None:
    c = Companies(tmp_path)
    plan = ["--plan-rounds", "2", "--plan-start-clients", "3", "--plan-heartbeat-seconds", "1"]
    forgetting = ["--forgetting-max-recovery-rounds", "1", "--forgetting-collapse-ratio", "0"]
    c.done("puf-server", "init", "--state", "state", *plan, *forgetting)
    c.done("puf-server", "certs", "init")
    c.done("puf-server", "certs", "server", "--name", "localhost", "--name", "127.0.0.1")
    c.done("puf-server", "certs", "client", "client-0")
    c.done("puf-server", "certs", "client", "client-1")
    c.done("puf-client", "enroll", "--name", "client-2", "--dir", "site")
    c.done("puf-server", "certs", "sign", "site/client-2.csr", "--name", "client-2")

    ports = c.directory / "ports"
    tls = ["--tls-cert", "certs/server.crt", "--tls-key", "certs/server.key", "--client-ca", "certs/ca.crt"]
    where = ["--listen", "127.0.0.1:0", "--operator", "127.0.0.1:0", "--announce", str(ports)]
    with c.start("server", "puf-server", "serve", "--state", "state", *tls, *where, "--log-format", "json") as server:
        wait_until(lambda: ports.exists() and ports.read_text().endswith("\n"), SECONDS, server)
        c.address = f"127.0.0.1:{ports.read_text().split()[0]}"
        mine = ["--state", "clients", *DATA]
        two = c.to_server("certs/clients/{name}.crt", "certs/clients/{name}.key")
        last = c.to_server("certs/clients/client-2.crt", "site/client-2.key")
        with (
            c.start("fleet", "puf-client", "fleet", "--clients", "3", "--except", "2", *two, *mine) as fleet,
            # Its name is in its certificate.
            c.start("client-2", "puf-client", "run", "--shard", "2/3", *last, *mine) as target,
            OperatorClient.of_state(c.state) as control,
        ):
            wait_until(lambda: control.status().position.phase == fed.PHASE_IDLE, SECONDS, server, fleet, target)
            assert control.status().rounds_trained == 2
            assert {x.name for x in control.clients()} == {"client-0", "client-1", "client-2"}

            refused_clients(c)
            refused_certificates(c, c.address, None)

            printed = c.done("puf-client", "--unlearn", "--yes", "--shard", "2/3", *last, *mine)
            assert "request of client-2 was applied" in printed
            assert target.wait(SECONDS) == Exit.FORGOTTEN
            (ticket,) = control.tickets()
            assert (ticket.client, ticket.state) == ("client-2", tk.TICKET_STATE_COMPLETED)

            # A revoked client is disconnected at once, though it waits in a call; the other stays.
            c.done("puf-server", "certs", "revoke", "client-1", "--state", "state")
            wait_until(lambda: '"client failed"' in fleet.log.read_text(), 10, server, fleet)
            assert "client-1 was revoked by the operator" in fleet.log.read_text()
            assert any(x.alive for x in control.clients() if x.name == "client-0")
            assert "phase" in c.done("puf-server", "status", "--state", "state")

            c.done("puf-server", "stop", "--state", "state")
            assert server.wait(30) == Exit.OK
            assert fleet.wait(30) == Exit.REFUSED
    assert "Traceback" not in server.log.read_text()


def refused_clients(c: Companies) -> None:
    """Every client without access gets the reason in one line."""
    Authority.create(c.directory / "other", "another")
    c.done("puf-server", "certs", "client", "client-0", "--dir", "other")
    own = ["certs/clients/client-0.crt", "certs/clients/client-0.key"]
    c.done("puf-server", "certs", "client", "late")
    late = ["certs/clients/late.crt", "certs/clients/late.key"]
    date_back(Authority.open(c.certs), c.directory / late[0])
    cases: list[tuple[list[str], Exit, str]] = [
        (
            c.to_server("other/clients/client-0.crt", "other/clients/client-0.key"),
            Exit.REFUSED,
            "certificate of its authority",
        ),
        (c.to_server(own[0], own[1], ca="other/ca.crt"), Exit.REFUSED, "was not signed by the authority in --tls-ca"),
        ([*c.to_server(own[0], own[1]), "--tls-server-name", "fed.example.org"], Exit.REFUSED, "--tls-server-name"),
        ([*c.to_server(own[0], own[1]), "--name", "client-1"], Exit.USAGE, "for client-0, not for client-1"),
        (c.to_server(late[0], late[1]), Exit.USAGE, "expired on"),
        (["--server", c.address, "--name", "client-0", "--tls-ca", "certs/ca.crt"], Exit.REFUSED, "--tls-cert"),
        (["--server", c.address, "--name", "client-0"], Exit.REFUSED, "--tls-ca"),
    ]
    for flags, code, says in cases:
        finished = c.do("puf-client", "status", *flags)
        assert (finished.code, finished.out) == (code, ""), finished
        assert len(finished.errors) == 1
        assert says in finished.errors[0]


def answer_to(
    c: Companies, address: str, cert: str, key: str, *, ca: str = "certs/ca.crt", host: hosts.Host | None
) -> str:
    """The server's answer to a caller that checks nothing before connecting and claims to be anna."""
    words = [sys.executable, "-m", "tests.e2e.join_call", address, ca, cert, key, "anna"]
    enter = host.enter if host else []
    return c.done(*enter, "env", f"PYTHONPATH={Path(__file__).parents[2]}", *words)


def refused_certificates(c: Companies, address: str, host: hosts.Host | None) -> None:
    """The server, not the client, refuses invalid certificates. A valid one stands for its own name only."""
    if not (c.directory / "other").exists():
        Authority.create(c.directory / "other", "another")
    for name, directory in (("anna", "other"), ("gone", "certs"), ("eve", "certs")):
        if not (c.directory / directory / "clients" / f"{name}.crt").exists():
            c.done("puf-server", "certs", "client", name, "--dir", directory)
    date_back(Authority.open(c.certs), c.certs / "clients" / "gone.crt")
    for name, directory in (("anna", "other"), ("gone", "certs")):
        files = f"{directory}/clients/{name}.crt", f"{directory}/clients/{name}.key"
        assert answer_to(c, address, *files, host=host).startswith("UNAVAILABLE"), name
    assert answer_to(c, address, "-", "-", host=host).startswith("UNAVAILABLE")
    # eve claims to be anna. The refusal names eve.
    printed = answer_to(c, address, "certs/clients/eve.crt", "certs/clients/eve.key", host=host)
    assert printed.startswith("FAILED_PRECONDITION")
    assert "the model of eve" in printed


@pytest.mark.skipif(not hosts.available(), reason="no network namespaces here")
def test_between_two_hosts(tmp_path: Path) -> None:
    c = Companies(tmp_path)
    c.done("puf-server", "init", "--state", "state")
    c.done("puf-server", "certs", "init")
    c.done("puf-server", "certs", "server", "--name", "10.99.0.1")
    c.done("puf-server", "certs", "client", "anna")
    c.done("puf-server", "certs", "operator", "ada")
    anna = ["--tls-ca", "certs/ca.crt", "--tls-cert", "certs/clients/anna.crt", "--tls-key", "certs/clients/anna.key"]
    ada = ["--tls-ca", "certs/ca.crt", "--tls-cert", "certs/operators/ada.crt", "--tls-key", "certs/operators/ada.key"]
    tls = ["--tls-cert", "certs/server.crt", "--tls-key", "certs/server.key", "--client-ca", "certs/ca.crt"]

    with hosts.cabled(["10.99.0.1", "10.99.0.3"], ["10.99.0.2"]) as (here, there):

        def at(host: hosts.Host, *words: str) -> Finished:
            return c.do(*host.enter, program(words[0]), *words[1:])

        def status(address: str, *more: str) -> Finished:
            return at(there, "puf-client", "status", "--server", address, "--patience", "1", *more)

        # The default addresses with TLS: all addresses for clients, loopback for the operator.
        with serving(c, here, *tls):
            assert "anna has no request to be forgotten" in status("10.99.0.1:7300", *anna).out
            wrong = status("10.99.0.3:7300", *anna)
            assert (wrong.code, "for another name" in wrong.err) == (Exit.REFUSED, True)
            assert status("10.99.0.3:7300", *anna, "--tls-server-name", "10.99.0.1").code == Exit.OK
            assert status("10.99.0.1:7300", "--name", "anna").code == Exit.REFUSED
            refused_certificates(c, "10.99.0.1:7300", there)
            far = at(there, "puf-server", "status", "--operator", "10.99.0.1:7301", *ada)
            assert far.code == Exit.UNREACHABLE
            assert at(here, "puf-server", "status", "--state", "state").code == Exit.OK
        with serving(c, here, *tls, "--operator", "0.0.0.0:7301"):
            assert at(there, "puf-server", "status", "--operator", "10.99.0.1:7301", *ada).code == Exit.OK
            refused = at(there, "puf-server", "stop", "--operator", "10.99.0.1:7301", *anna)
            assert (refused.code, "the certificate of anna is for a client" in refused.err) == (Exit.REFUSED, True)
        # Without TLS no other host reaches the server.
        with serving(c, here, "--insecure"):
            assert status("10.99.0.1:7300", "--name", "anna").code == Exit.UNREACHABLE
            assert at(here, "puf-client", "status", "--name", "anna").code == Exit.OK


@contextmanager
def serving(c: Companies, host: hosts.Host, *flags: str) -> Iterator[None]:
    ports = c.directory / "ports"
    ports.unlink(missing_ok=True)
    words = [*host.enter, program("puf-server"), "serve", "--state", "state", "--announce", str(ports), *flags]
    with Process([str(shutil.which(words[0])), *words[1:]], c.directory / "host.log", cwd=c.directory) as server:
        wait_until(lambda: ports.exists() and ports.read_text().endswith("\n"), SECONDS, server)
        yield
