"""Checks Prometheus of `deploy/monitoring.yml` against a federation; used by `try_compose.py --monitoring`."""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.parse
import urllib.request
from typing import Any

from trials import ROOT, available_image, check, docker, wait_for

__all__ = ["Prometheus", "image", "test_rules"]

MONITORING = ROOT / "deploy" / "monitoring"
# Has configuration, data and account in the same places as the official image.
STAND_IN = """
FROM python:3.11-slim
RUN apt-get update && apt-get install -y --no-install-recommends prometheus && rm -rf /var/lib/apt/lists/* \\
 && install -d -o nobody -g nogroup /prometheus
USER nobody
VOLUME /prometheus
ENTRYPOINT ["prometheus"]
CMD ["--config.file=/etc/prometheus/prometheus.yml", "--storage.tsdb.path=/prometheus"]
"""
# Metrics of events that do not happen here: a request with a deadline, a refused update.
MAY_BE_EMPTY = ("puf_ticket_deadline_seconds", "puf_updates_refused_total", "puf_ticket_age_seconds")


def image() -> str:
    """The image of the overlay if it is available, otherwise an image with Debian's Prometheus."""
    return available_image("monitoring", "PROMETHEUS_IMAGE", STAND_IN)


def test_rules(image: str) -> None:
    """Runs promtool's tests of the alert rules."""
    mounted = ["--network", "none", "-v", f"{MONITORING}:/rules:ro", "--entrypoint", "promtool"]
    shown = docker("run", "--rm", *mounted, image, "test", "rules", "/rules/alerts.test.yml")
    check("promtool's tests of the alert rules pass", "SUCCESS" in shown, shown)


class Prometheus:
    """The HTTP API of the container."""

    def __init__(self, port: int) -> None:
        self._base = f"http://127.0.0.1:{port}/api/v1/"

    def ask(self, what: str, **query: str) -> Any:
        url = f"{self._base}{what}?{urllib.parse.urlencode(query)}"
        try:
            with urllib.request.urlopen(url, timeout=10) as reply:  # noqa: S310
                answer = json.load(reply)
        except urllib.error.HTTPError as error:
            raise SystemExit(f"Prometheus refused {what} {query}: {error.read().decode()}") from None
        except OSError:
            return {}
        return answer["data"]

    def value(self, query: str) -> float | None:
        found = self.ask("query", query=query).get("result", [])
        return float(found[0]["value"][1]) if found else None

    def saw_it(self, clients: int) -> None:
        """Checks targets, rules and dashboard after one client was forgotten and another one joined."""
        wait_for("a scrape", lambda: self.value('puf_clients{state="forgotten"}') == 1)
        (target,) = self.ask("targets")["activeTargets"]
        check("Prometheus reads the server's metrics", target["health"] == "up", target)
        wait_for("the newest scrape", lambda: self.value('puf_clients{state="alive"}') == clients)
        check("Prometheus has the completed ticket", self.value('puf_tickets{state="completed"}') == 1)
        rules = [rule for group in self.ask("rules")["groups"] for rule in group["rules"]]
        written = re.findall(r"- alert: (\w+)", (MONITORING / "alerts.yml").read_text())
        check(f"Prometheus loaded all {len(written)} alert rules", [rule["name"] for rule in rules] == written, rules)
        wait_for("an evaluation", lambda: all(r["health"] != "unknown" for r in self._rules()))
        failing = [rule for rule in self._rules() if rule["health"] != "ok"]
        check("every rule can be evaluated", not failing, failing)
        firing = [rule["name"] for rule in self._rules() if rule["state"] == "firing"]
        check("no alert fires", not firing, firing)
        board = json.loads((MONITORING / "grafana" / "dashboards" / "puf.json").read_text())
        queries = [target["expr"] for panel in board["panels"] for target in panel.get("targets", [])]
        understood = [query for query in queries if "result" in self.ask("query", query=query)]
        answered = [query for query in queries if not any(name in query for name in MAY_BE_EMPTY)]
        # A rate needs two scrapes of the same process.
        wait_for("an answer to every query", lambda: all(self.value(query) is not None for query in answered))
        check(f"all {len(queries)} queries of the dashboard are answered", understood == queries)

    def misses_the_server(self) -> None:
        """Checks that a stopped server is noticed."""
        wait_for("PufDown", lambda: any(r["name"] == "PufDown" and r["state"] == "pending" for r in self._rules()))
        check("PufDown is pending after the server stopped", holds=True)

    def _rules(self) -> list[dict[str, Any]]:
        return [rule for group in self.ask("rules").get("groups", []) for rule in group["rules"]]
