"""Runs a federation with the overlay `deploy/postgres.yml`; used by `try_compose.py --postgres`."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

from trials import SECONDS, available_image, check, docker, say, wait_for

if TYPE_CHECKING:
    from try_compose import Compose

__all__ = ["image", "trial"]

# Takes the same variables and has its data in the same place as the official image.
STAND_IN = r"""
FROM python:3.11-slim
RUN apt-get update && apt-get install -y --no-install-recommends postgresql && rm -rf /var/lib/apt/lists/* \
 && ln -s /usr/lib/postgresql/*/bin/* /usr/local/bin/ \
 && install -d -o postgres -g postgres -m 700 /var/lib/postgresql/data /var/run/postgresql
RUN printf '%s\n' '#!/bin/sh' 'set -e' 'data=/var/lib/postgresql/data' \
 'if [ ! -s $data/PG_VERSION ]; then' \
 '  echo "$POSTGRES_PASSWORD" > /tmp/password' \
 '  initdb -D $data -U "$POSTGRES_USER" -A scram-sha-256 --pwfile=/tmp/password -E UTF8 --locale=C.UTF-8' \
 '  rm /tmp/password' \
 '  echo "host all all all scram-sha-256" >> $data/pg_hba.conf' \
 '  echo "CREATE DATABASE $POSTGRES_DB" | postgres --single -D $data postgres' \
 'fi' \
 'exec postgres -D $data -c listen_addresses="*"' > /usr/local/bin/serve-database && chmod 755 /usr/local/bin/serve-database
USER postgres
VOLUME /var/lib/postgresql/data
ENTRYPOINT ["serve-database"]
"""
# The brackets exclude the command itself.
_WORKERS = "grep -la 'multiprocessing[.]spawn' /proc/[0-9]*/cmdline | cut -d/ -f3"


def image() -> str:
    """The image of the overlay if it is available, otherwise an image with Debian's PostgreSQL."""
    return available_image("postgres", "POSTGRES_IMAGE", STAND_IN)


def trial(compose: Compose) -> None:
    """Two server processes train a federation. A process and the database are killed, and a client is forgotten."""
    n, target = compose.clients, compose.clients - 1
    started = time.monotonic()
    compose("up", "-d", "--scale", f"client={n}")
    wait_for("round 3", lambda: compose.metrics().get("puf_round", 0) >= 3)
    say(f"third round of {n} clients {time.monotonic() - started:.1f} s after `up`")
    workers = _workers(compose)
    check("two processes serve", len(workers) == 2, workers)
    compose("exec", "-T", "server", "sh", "-c", f"kill -9 {workers[-1]}")
    wait_for("another process", lambda: len(_workers(compose)) == 2 and workers[-1] not in _workers(compose))
    compose("kill", "-s", "SIGKILL", "database")
    compose("start", "database")
    wait_for("the rest of the training", lambda: compose.metrics().get('puf_phase{phase="idle"}') == 1)
    rounds = [r for r in json.loads(compose.server("rounds", "--json")) if r["kind"] == "train"]
    check(f"{len(rounds)} rounds were trained after the kills", len(rounds) > 3, rounds)
    asking = compose.beside(target, "puf-client", "--unlearn", "--yes")
    shown, _ = asking.communicate(timeout=SECONDS)
    check(f"client-{target} was forgotten by its own command", asking.returncode == 0, shown)
    (name,) = [w.rpartition("/")[2] for w in shown.split() if w.endswith(".json") and "receipt-" in w]
    verified = compose.inside(1, "puf-client", "verify", f"clients/receipts/{name}")
    check("another replica verifies the receipt", f"client-{target}" in verified, verified)
    place = ["--state", "postgresql://puf@database/puf", "--files", "state"]
    audited = compose.server("audit", "verify", *place)
    say(audited.strip())
    log = docker("logs", compose("ps", "-q", "server").split()[0])
    check("the server logged no traceback", "Traceback" not in log, log[-2000:])


def _workers(compose: Compose) -> list[str]:
    return compose("exec", "-T", "server", "sh", "-c", _WORKERS, ok=False).split()
