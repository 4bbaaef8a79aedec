"""The deployment files are valid for Kubernetes, compose, systemd, Prometheus and Grafana."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from puf_common.config.exit_codes import Exit
from puf_common.config.settings import resolve
from puf_server.cli.main import _parser
from puf_server.cli.serve import ServeSettings

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"

kubernetes_validate = pytest.importorskip("kubernetes_validate", reason="kubernetes-validate is not installed")


def documents() -> list[Any]:
    return [
        pytest.param(document, id=f"{path.stem}-{document['kind']}")
        for path in sorted((DEPLOY / "kubernetes").glob("*.yaml"))
        for document in yaml.safe_load_all(path.read_text())
    ]


@pytest.mark.parametrize("document", documents())
def test_the_manifests_are_valid_for_kubernetes(document: dict[str, Any]) -> None:
    kubernetes_validate.validate(document, kubernetes_validate.latest_version(), strict=True)


def test_the_validator_finds_a_wrong_type() -> None:
    wrong = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "x"}, "spec": {"ports": [{"port": "many"}]}}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, kubernetes_validate.latest_version(), strict=True)


@pytest.mark.parametrize("overlay", ["", "gpu", "monitoring", "own-certificates", "postgres"])
def test_compose_accepts_every_overlay(overlay: str) -> None:
    known = (["docker-compose"], ["docker", "compose"])
    program = next((p for p in known if shutil.which(p[0]) and not subprocess.call([*p, "version"])), None)
    if program is None:
        pytest.skip("compose is not installed")
    files = ["-f", "docker-compose.yml", *(["-f", f"deploy/{overlay}.yml"] if overlay else [])]
    env = {"PATH": "/usr/local/bin:/usr/bin:/bin", "PUF_CERTIFICATES": "/certificates", "GRAFANA_PASSWORD": "x"}
    env["POSTGRES_PASSWORD"] = "x"
    done = subprocess.run([*program, *files, "config"], cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    merged = yaml.safe_load(done.stdout)
    assert merged["services"]["client"]["restart"] == "on-failure"
    if overlay in ("own-certificates", "postgres"):
        assert "--client-ca" in merged["services"]["server"]["command"]


def test_compose_and_kubernetes_serve_a_state_in_postgresql_with_flags_that_exist() -> None:
    overlay = yaml.safe_load((DEPLOY / "postgres.yml").read_text())["services"]["server"]["command"]
    documents = list(yaml.safe_load_all((DEPLOY / "kubernetes/servers.yaml").read_text()))
    (deployment,) = [d for d in documents if d["kind"] == "Deployment"]
    (budget,) = [d for d in documents if d["kind"] == "PodDisruptionBudget"]
    pod = deployment["spec"]["template"]["spec"]["containers"][0]
    words = [word.replace("${PUF_WORKERS:-2}", "2") for word in overlay]
    for command, workers in ((words, 2), (pod["args"], 1)):
        settings = resolve(ServeSettings, _parser(command).parse_args(command))
        assert settings.workers == workers
        assert settings.files is not None
        assert settings.client_ca is not None
    assert deployment["spec"]["replicas"] > budget["spec"]["maxUnavailable"] == 1
    assert deployment["spec"]["selector"]["matchLabels"] == budget["spec"]["selector"]["matchLabels"]
    assert pod["readinessProbe"]["exec"]["command"] == ["puf-server", "health"]


def test_every_file_that_an_overlay_mounts_exists() -> None:
    for path in DEPLOY.glob("*.yml"):
        for service in yaml.safe_load(path.read_text())["services"].values():
            for volume in service.get("volumes", []):
                if volume.startswith("./"):
                    assert (ROOT / volume.split(":")[0]).exists(), f"{path.name}: {volume}"


def test_systemd_does_not_restart_a_forgotten_client() -> None:
    unit = (DEPLOY / "systemd/puf-client@.service").read_text()
    settings = dict(line.split("=", 1) for line in unit.splitlines() if "=" in line and not line.startswith("#"))
    for code in (Exit.FORGOTTEN, Exit.SUPERSEDED):
        assert str(code.value) in settings["RestartPreventExitStatus"].split()
        assert str(code.value) in settings["SuccessExitStatus"].split()


def test_systemd_accepts_the_units(tmp_path: Path) -> None:
    if not shutil.which("systemd-analyze"):
        pytest.skip("systemd-analyze is not installed")
    for unit in (DEPLOY / "systemd").glob("*.service"):
        # The programs are not installed here; everything else must be valid.
        text = (
            unit.read_text()
            .replace("/opt/puf/bin/puf-server", "/bin/true")
            .replace("/opt/puf/bin/puf-client", "/bin/true")
        )
        (tmp_path / unit.name.replace("@", "@x")).write_text(text)
        done = subprocess.run(
            ["systemd-analyze", "verify", str(tmp_path / unit.name.replace("@", "@x"))],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert unit.stem.split("@")[0] not in done.stderr, done.stderr


def test_prometheus_accepts_the_rules() -> None:
    if not shutil.which("promtool"):
        pytest.skip("promtool is not installed")
    for words in (["check", "config", "prometheus.yml"], ["test", "rules", "alerts.test.yml"]):
        done = subprocess.run(
            ["promtool", *words], cwd=DEPLOY / "monitoring", capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr


def test_every_rule_has_a_test_in_which_it_fires() -> None:
    written = {
        r["alert"] for g in yaml.safe_load((DEPLOY / "monitoring/alerts.yml").read_text())["groups"] for r in g["rules"]
    }
    tests = yaml.safe_load((DEPLOY / "monitoring/alerts.test.yml").read_text())["tests"]
    assert written == {t["alertname"] for test in tests for t in test["alert_rule_test"] if t["exp_alerts"]}


def test_the_panels_of_the_dashboard_do_not_overlap() -> None:
    board = json.loads((DEPLOY / "monitoring/grafana/dashboards/puf.json").read_text())
    assert len({p["id"] for p in board["panels"]}) == len(board["panels"]) >= 10
    taken: set[tuple[int, int]] = set()
    for panel in board["panels"]:
        place = panel["gridPos"]
        cells = {(place["x"] + i, place["y"] + j) for i in range(place["w"]) for j in range(place["h"])}
        assert not cells & taken, panel["title"]
        assert place["x"] + place["w"] <= 24
        taken |= cells


def test_grafana_finds_its_data_source_and_its_dashboard() -> None:
    """Grafana itself does not run here. Its files must fit each other and the overlay."""
    place = DEPLOY / "monitoring/grafana/provisioning"
    services = yaml.safe_load((DEPLOY / "monitoring.yml").read_text())["services"]
    (source,) = yaml.safe_load((place / "datasources/prometheus.yml").read_text())["datasources"]
    (provider,) = yaml.safe_load((place / "dashboards/puf.yml").read_text())["providers"]
    mounts = {inside: outside for outside, inside, *_ in (v.split(":") for v in services["grafana"]["volumes"])}
    assert mounts["/etc/grafana/provisioning"] == f"./{place.relative_to(ROOT)}"
    assert mounts[provider["options"]["path"]] == "./deploy/monitoring/grafana/dashboards"
    (port,) = services["prometheus"]["ports"]
    assert source["url"] == f"http://prometheus:{port.rpartition(':')[2]}"
    board = json.loads((DEPLOY / "monitoring/grafana/dashboards/puf.json").read_text())
    named = {source["uid"] for panel in board["panels"] for source in [panel["datasource"]] if "targets" in panel}
    assert named == {source["uid"]}


@pytest.mark.parametrize("trial", ["try_compose", "try_pages", "try_systemd"])
def test_without_an_engine_a_trial_prints_a_line_and_ends(tmp_path: Path, trial: str) -> None:
    done = subprocess.run(
        [sys.executable, str(DEPLOY / f"{trial}.py")],
        env={"PATH": str(tmp_path)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("skipped: no Docker engine is available")


def test_all_files_state_the_same_version() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    for role in ("server", "client"):
        assert f"ARG VERSION={version}\n" in (DEPLOY / f"docker/{role}.Dockerfile").read_text()
    for path in (DEPLOY / "kubernetes").glob("*.yaml"):
        images = [line.split()[-1] for line in path.read_text().splitlines() if "image:" in line]
        assert images
        assert {image.partition(":")[2] for image in images} == {version}
