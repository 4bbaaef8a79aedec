"""Runs the compose file: a federation of containers trains, its server is killed twice, and one replica is forgotten.

    python deploy/try_compose.py [--clients 4] [--monitoring] [--own-certificates] [--postgres] [--keep]

Starts `docker-compose.yml` under a separate project name and removes everything afterwards, including volumes. Needs a
Docker engine and either `docker compose` or `docker-compose`; without them it prints a line and ends with 0. With
--monitoring, Prometheus also runs and its values are checked. With --own-certificates, another federation uses certificates
of an authority outside the containers. With --postgres, another one has its state in PostgreSQL and two server processes.
"""

from __future__ import annotations

import argparse
import json
import os
import ssl
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import try_monitoring
import try_postgres
from trials import ROOT, SECONDS, check, docker, engine_answers, found_compose, free_port, say, wait_for

ROUNDS = 20


class Compose:
    """One project of the compose file, controlled from the host."""

    def __init__(self, program: list[str], clients: int, overlay: str = "", **settings: str) -> None:
        self._program = program
        self._overlay = overlay
        self.project = "-".join(["puf-try", *([overlay] if overlay else []), str(os.getpid())])
        self.clients = clients
        names = ("PUF_PORT", "PUF_METRICS_PORT", "PUF_DASHBOARD_PORT", "PROMETHEUS_PORT")
        self.ports = {name: free_port() for name in names}
        self._env = os.environ | {name: str(port) for name, port in self.ports.items()} | settings
        self._env |= {"PUF_ROUNDS": str(ROUNDS), "PUF_CLIENTS": str(clients), "PUF_SHARDS": str(clients + 1)}

    def command(self, *words: str) -> list[str]:
        files = ["docker-compose.yml", *([f"deploy/{self._overlay}.yml"] if self._overlay else [])]
        return [*self._program, "-p", self.project, *(word for file in files for word in ("-f", file)), *words]

    def __call__(self, *words: str, ok: bool = True) -> str:
        done = subprocess.run(self.command(*words), env=self._env, cwd=ROOT, capture_output=True, text=True)
        if ok and done.returncode:
            raise SystemExit(f"failed ({done.returncode}): {' '.join(words)}\n{done.stdout}\n{done.stderr}")
        return done.stdout

    def inside(self, index: int, *words: str) -> str:
        return self("exec", "-T", f"--index={index}", "client", *words)

    def server(self, *words: str) -> str:
        return self("exec", "-T", "server", "puf-server", *words)

    def beside(self, index: int, *words: str) -> subprocess.Popen[str]:
        command = self.command("exec", "-T", f"--index={index}", "client", *words)
        return subprocess.Popen(
            command, env=self._env, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )

    def replica(self, index: int) -> tuple[str, int]:
        """Status and exit code of one replica's container."""
        ids = self("ps", "-a", "-q", "client", ok=False) or self("ps", "-q", "client")
        for container in ids.split():
            form = (
                '{{.State.Status}} {{.State.ExitCode}} {{index .Config.Labels "com.docker.compose.container-number"}}'
            )
            status, code, number = docker("inspect", "-f", form, container).split()
            if int(number) == index:
                return status, int(code)
        raise SystemExit(f"there is no replica {index}")

    def metrics(self) -> dict[str, float]:
        """Values by name and labels, as in the text; empty if the endpoint does not answer."""
        try:
            with urllib.request.urlopen(
                f"http://127.0.0.1:{self.ports['PUF_METRICS_PORT']}/metrics", timeout=5
            ) as reply:
                lines = reply.read().decode().splitlines()
        except OSError:
            return {}
        return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if not line.startswith("#")}

    def dashboard(self, token: str = "") -> str:
        """The overview of the dashboard, or the reason why there is none."""
        context = ssl.create_default_context(cadata=self("exec", "-T", "dashboard", "cat", "dashboard/ca.crt"))
        page = urllib.request.Request(f"https://127.0.0.1:{self.ports['PUF_DASHBOARD_PORT']}/")
        if token:
            page.add_header("Authorization", f"Bearer {token}")
        try:
            with urllib.request.urlopen(page, timeout=5, context=context) as reply:  # noqa: S310  # always https
                found: str = reply.read().decode()
                return found
        except OSError as error:
            return str(error)


def images() -> None:
    """Checks the images against the documentation."""
    for role, other in (("server", "client"), ("client", "server")):
        image = os.environ.get(f"PUF_{role.upper()}_IMAGE", f"puf-{role}")
        (found,) = json.loads(docker("image", "inspect", image))
        config, layers = found["Config"], found["RootFS"]["Layers"]
        say(f"{image}: {found['Size'] / 1e6:,.0f} MB, {len(layers)} layers")
        named = config["Labels"]["org.opencontainers.image.version"]
        check(
            "the image has a version, a volume, and an account without rights",
            bool(named and config["Volumes"]) and config["User"] == "puf",
        )
        asked = (config.get("Healthcheck") or {}).get("Test")
        check(
            "only the server's image has a health check",
            asked == (["CMD", "puf-server", "health"] if role == "server" else None),
        )
        alone = ["run", "--rm", "--network", "none", "--user", "0", "--entrypoint"]
        look = f"import importlib.util as i; print(*[n for n in ('puf_{other}', 'puf_lab') if i.find_spec(n)])"
        foreign = docker(*alone, "python", image, "-c", look).split()
        check("the image does not contain the code of other roles", not foreign, foreign)
        keys = ["(", "-name", "*.key", "-o", "-name", "*-key.pem", "-o", "-name", "operator.json", ")"]
        secrets = docker(*alone, "find", image, "/", "-xdev", *keys, "-type", "f").split()
        check("the image contains no keys", not secrets, secrets)


def logged(compose: Compose) -> None:
    """Checks that the logs of containers are JSON and name their subject."""
    lines = [json.loads(line) for line in docker("logs", compose("ps", "-q", "server").split()[0]).splitlines()]
    # The first line is about the certificate; the state is not open yet. Lines about the database belong to no round.
    without = {e for line in lines if "round" not in line and "database" not in (e := line["event"])} - {"TLS"}
    check(f"each of the server's {len(lines)} lines is JSON and names its round", not without, without)
    events = [line for line in lines if line["event"].startswith("ticket.")]
    check(
        "lines about the request name client and ticket",
        bool(events) and all({"client", "ticket"} <= set(e) for e in events),
        events,
    )


def experiment(compose: Compose, reports: Path, prometheus: try_monitoring.Prometheus | None) -> None:
    n, target = compose.clients, compose.clients - 1
    started = time.monotonic()
    compose("build")
    say(f"images built in {time.monotonic() - started:.1f} s")
    images()
    started = time.monotonic()
    # Services by name, because Grafana's image may not be available. The client service starts the others.
    services = [] if prometheus is None else ["client", "dashboard", "prometheus"]
    compose("up", "-d", "--scale", f"client={n}", *services)
    wait_for("the server", lambda: bool(compose.metrics()))
    say(f"server answers {time.monotonic() - started:.1f} s after `up`, on empty volumes")
    wait_for("round 1", lambda: compose.metrics().get("puf_round", 0) >= 1)
    say(f"first round of {n} clients {time.monotonic() - started:.1f} s after `up`")

    token = compose("exec", "-T", "dashboard", "cat", "dashboard/token").strip()
    wait_for("the dashboard", lambda: "Clients alive" in compose.dashboard(token))
    check("the dashboard asks for its password", "401" in compose.dashboard(), compose.dashboard())

    wait_for("round 3", lambda: compose.metrics().get("puf_round", 0) >= 3)
    compose("kill", "-s", "SIGKILL", "server")
    check("the server was killed during training", not compose.metrics())
    started = time.monotonic()
    compose("start", "server")
    wait_for("the server", lambda: bool(compose.metrics()))
    say(f"server answers {time.monotonic() - started:.1f} s after `start`")
    idle = 'puf_phase{phase="idle"}'
    wait_for("the rest of the training", lambda: compose.metrics().get(idle) == 1)
    trained = compose.metrics()
    check(f"all {ROUNDS} rounds were trained once", trained['puf_rounds_committed_total{kind="train"}'] == ROUNDS)
    check(
        f"{n} replicas hold {n} shards of {n + 1}", (trained["puf_shards_leased"], trained["puf_shards"]) == (n, n + 1)
    )
    shards = {c["name"]: c.get("shard") for c in json.loads(compose.server("clients", "--json"))}
    check("replica i trains on shard i - 1", shards == {f"client-{i}": i - 1 for i in range(1, n + 1)}, shards)

    compose.server("pause")
    asking = compose.beside(target, "puf-client", "--unlearn", "--yes")
    wait_for("the request", lambda: compose.metrics().get('puf_tickets{state="pending"}', 0) == 1)
    compose("kill", "-s", "SIGKILL", "server")
    compose("start", "server")
    wait_for("the server", lambda: bool(compose.metrics()))
    check("the request is still there after the kill", compose.metrics()['puf_tickets{state="pending"}'] == 1)
    compose.server("resume")
    shown, _ = asking.communicate(timeout=SECONDS)
    check(f"client-{target} was forgotten by its own command", asking.returncode == 0, shown)
    print("      | " + "\n      | ".join(line for line in shown.splitlines() if not line.startswith("{")), flush=True)

    wait_for("the container's end", lambda: compose.replica(target)[0] == "exited")
    check("the target's container ended with 0", compose.replica(target) == ("exited", 0), compose.replica(target))
    now = compose.metrics()
    check(
        "the metrics count one completed ticket and one forgotten client",
        now['puf_tickets{state="completed"}'] == now['puf_clients{state="forgotten"}'] == 1,
        now,
    )
    check("the other clients are alive", now['puf_clients{state="alive"}'] == n - 1, now)
    check("at most eight doses were committed", 1 <= now['puf_rounds_committed_total{kind="unlearn"}'] <= 8, now)
    check("the model recovered", "recovered" in shown and "not recovered" not in shown, shown)
    check("the data is not still known", not now['puf_tickets_judged_total{verdict="still known"}'], shown)

    (name,) = [w.rpartition("/")[2] for w in shown.split() if w.endswith(".json") and "receipt-" in w]
    verified = compose.inside(1, "puf-client", "verify", f"clients/receipts/{name}")
    check("another replica verifies the receipt", f"client-{target}" in verified, verified)
    source = compose("ps", "-q", "server").split()[0]
    compose.server("export", "--out", "state/model.safetensors")
    docker("cp", f"{source}:/var/lib/puf/state/model.safetensors", str(reports))
    client = next(c for c in compose("ps", "-q", "client").split())
    for file in (name, name.replace(".json", ".html")):
        docker("cp", f"{client}:/var/lib/puf/clients/receipts/{file}", str(reports))
    receipt = json.loads((reports / name).read_text())
    check("receipt and model are on the host", "signature" in json.dumps(receipt), receipt)
    logged(compose)

    compose("up", "-d", "--scale", f"client={n + 1}", *services)
    wait_for("one more client", lambda: compose.metrics().get('puf_clients{state="alive"}') == n)
    wait_for("the end of the forgotten replica", lambda: compose.replica(target)[0] == "exited")
    check("started again, the forgotten replica ends with 0", compose.replica(target) == ("exited", 0))
    shards = {c["name"]: c.get("shard") for c in json.loads(compose.server("clients", "--json"))}
    check("a new replica gets a free shard, not the forgotten client's", shards[f"client-{n + 1}"] == n, shards)
    if prometheus is not None:
        prometheus.saw_it(n)
        compose("stop", "server")
        prometheus.misses_the_server()


def own_certificates(compose: Compose, certificates: Path) -> None:
    """Makes certificates in a container without network and runs a federation with them."""
    n = compose.clients
    make = ["puf-server certs init --dir .", "puf-server certs server --dir . --name server --name localhost"]
    make += [f"puf-server certs client client-{i} --dir . && mv clients/client-{i}.* ." for i in range(1, n + 1)]
    user = ["--user", "0:0", "-v", f"{certificates}:/made", "-w", "/made", "--network", "none"]
    make += ["chown -R 10001:10001 ."]
    image = os.environ.get("PUF_SERVER_IMAGE", "puf-server")
    docker("run", "--rm", *user, "--entrypoint", "sh", image, "-ec", "\n".join(make))
    compose("up", "-d", "--scale", f"client={n}")
    idle = 'puf_phase{phase="idle"}'
    wait_for("the training", lambda: compose.metrics().get(idle) == 1)
    names = {c["name"] for c in json.loads(compose.server("clients", "--json"))}
    check(f"{n} clients trained with certificates of another authority", len(names) == n, names)
    signed = compose("exec", "-T", "server", "sh", "-c", "ls tls authority 2>&1 || true")
    check("the server made no certificates itself", ".key" not in signed, signed)


def main() -> int:
    parser = argparse.ArgumentParser(description="Run docker-compose.yml and check the result.")
    parser.add_argument("--clients", type=int, default=4, help="replicas (4)")
    parser.add_argument("--monitoring", action="store_true", help="also run Prometheus (deploy/monitoring.yml)")
    parser.add_argument(
        "--own-certificates", action="store_true", help="also run with certificates of another authority"
    )
    parser.add_argument("--postgres", action="store_true", help="also run with the state in PostgreSQL")
    parser.add_argument("--keep", action="store_true", help="leave the containers running")
    parser.add_argument("--reports", type=Path, help="directory for receipt and model (default: a temporary one)")
    arguments = parser.parse_args()
    program = found_compose()
    if program is None or not engine_answers():
        print("skipped: no Docker engine is available, or neither `docker compose` nor `docker-compose` is installed")
        return 0
    if arguments.clients < 3:
        parser.error("at least 3 clients are needed: one is forgotten, and a round needs two")
    overlay, settings = "", {}
    if arguments.monitoring:
        overlay, settings = "monitoring", {"PROMETHEUS_IMAGE": try_monitoring.image(), "GRAFANA_PASSWORD": "trial"}
        try_monitoring.test_rules(settings["PROMETHEUS_IMAGE"])
    compose = Compose(program, arguments.clients, overlay, **settings)
    prometheus = try_monitoring.Prometheus(compose.ports["PROMETHEUS_PORT"]) if arguments.monitoring else None
    version = subprocess.run([*program, "version", "--short"], capture_output=True, text=True, check=False).stdout
    say(f"{' '.join(program)} {version.strip()}, project {compose.project}")
    with tempfile.TemporaryDirectory() as scratch:
        reports = arguments.reports or Path(scratch)
        reports.mkdir(parents=True, exist_ok=True)
        with taken_down(compose, keep=arguments.keep):
            experiment(compose, reports, prometheus)
        if arguments.own_certificates:
            certificates = Path(scratch) / "certificates"
            certificates.mkdir()
            own = Compose(program, arguments.clients, "own-certificates", PUF_CERTIFICATES=str(certificates))
            with taken_down(own, keep=arguments.keep):
                own_certificates(own, certificates)
        if arguments.postgres:
            settings = {"POSTGRES_IMAGE": try_postgres.image(), "POSTGRES_PASSWORD": "trial"}
            several = Compose(program, arguments.clients, "postgres", **settings)
            with taken_down(several, keep=arguments.keep):
                try_postgres.trial(several)
    print("all checks passed")
    return 0


@contextmanager
def taken_down(compose: Compose, *, keep: bool) -> Iterator[None]:
    """Prints the logs after a failure. Removes containers and volumes."""
    try:
        yield
    except SystemExit:
        print(compose("logs", "--tail=20", ok=False))
        raise
    finally:
        if not keep:
            compose("down", "-v", "-t", "5", ok=False)
            say("containers removed")


if __name__ == "__main__":
    sys.exit(main())
