"""The commands of the pages on security and deployment work as written. `deploy/try_pages.py` tests those that need Docker."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import yaml
from tests.e2e.federation import SECONDS, Finished
from tests.e2e.pasting import Terminal, commands

from puf_common.config.exit_codes import Exit
from puf_lab.federations.processes import Process, wait_until
from puf_server.cli.operator_client import OperatorClient

pytestmark = pytest.mark.e2e

ROOT = Path(__file__).parents[2]


def section(page: str, title: str) -> str:
    found = re.search(rf"^## {title}\n(.*?)(?=^## |\Z)", (ROOT / "docs" / page).read_text(), re.DOTALL | re.MULTILINE)
    assert found is not None, f"{page} has no section {title!r}"
    return found[1]


class Reader(Terminal):
    """Runs the commands of a page and replaces its example hosts and ports."""

    def read(self, line: str) -> Finished | None:
        for example, here in (
            ("localhost:7300", self.env["PUF_LISTEN"]),
            ("fed.example.org:7300", self.env["PUF_LISTEN"]),
            ("localhost:7301", self.env["PUF_OPERATOR"]),
            ("127.0.0.1:9300", "127.0.0.1:0"),
        ):
            line = line.replace(example, here)
        if line.startswith("puf-server serve"):
            # One server serves a state: end the first before the next one starts.
            for started in [words for words in self.running if words.startswith("puf-server serve")]:
                assert self.running.pop(started).end() == Exit.OK
        done = self.paste(line)
        if done is not None:
            assert done.code == Exit.OK, f"{line}\n{done.out}{done.err}"
        return done

    def log_of(self, prefix: str) -> str:
        return next(process.log.read_text() for line, process in self.running.items() if line.startswith(prefix))


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    with ExitStack() as stack:
        opened = Reader(tmp_path, stack)
        # Every command of these pages names its server.
        del opened.env["PUF_SERVER"]
        yield opened


def test_the_commands_of_the_security_page_work_in_order(reader: Reader) -> None:
    pasted = commands((ROOT / "docs" / "security.md").read_text())
    assert len(pasted) > 25
    shown: dict[str, str] = {}
    for line in pasted:
        done = reader.read(line)
        shown[line.partition("#")[0].strip()] = done.out if done is not None else ""
        if line.startswith("puf-client run"):
            with OperatorClient.of_state(reader.directory / "state", start_seconds=SECONDS) as control:
                wait_until(lambda: any(c.name == "clinic-7" for c in control.clients()), SECONDS)

    def shown_by(prefix: str) -> str:
        return next(text for line, text in shown.items() if line.startswith(prefix))

    assert (reader.directory / "site" / "clinic-9.crt").exists()
    assert "clinic-7" in shown_by("puf-server certs revoked")
    assert "clinic-7" in shown_by("puf-server tokens list")
    client = next(process for line, process in reader.running.items() if line.startswith("puf-client run"))
    assert client.wait(SECONDS) == Exit.REFUSED
    assert "revoked" in client.log.read_text()


def connected(process: Process) -> None:
    wait_until(lambda: "connected to the server" in process.log.read_text(), SECONDS, process)


def test_the_commands_of_the_dashboard_page_work(reader: Reader) -> None:
    for line in (
        "puf-server init --state fed",
        "puf-server certs init --dir certs",
        "puf-server certs server --dir certs --name localhost --name 127.0.0.1",
        "puf-server serve --state fed --tls-cert certs/server.crt --tls-key certs/server.key --client-ca certs/ca.crt",
    ):
        reader.read(line)
    pasted = [line for line in commands((ROOT / "docs" / "dashboard.md").read_text()) if line.startswith("puf-server ")]
    shown = [line for line in pasted if line.startswith("puf-server dashboard")]
    assert len(shown) == 3
    for line in pasted:
        reader.read(line.replace("0.0.0.0:7302", "0.0.0.0:0"))
        if line in shown:
            process = reader.running.popitem()[1]
            connected(process)
            assert process.end() == Exit.OK
            # The next one may have a log of the same name.
            process.log.unlink()


def test_the_commands_for_many_machines_work(reader: Reader) -> None:
    text = section("deploy-hosts.md", "Many machines")
    assert "`puf-client model --out w0.safetensors`" in text
    reader.read("puf-client model --out w0.safetensors")
    # The set-up of the two machines is done here. deploy/try_pages.py tests the containers.
    elsewhere = ("python3 -m venv", "export ", "docker ")
    for line in commands(text):
        if line.startswith(elsewhere):
            continue
        if line.startswith("puf-client run"):
            signing = re.search(r"`(puf-server certs sign [^`]+)`", text)
            assert signing is not None
            reader.read("cp site/clinic-7.csr .")
            reader.read(signing[1])
            reader.read("cp certs/clients/clinic-7.crt certs/ca.crt site/")
        reader.read(line)
    with OperatorClient.of_state(reader.directory / "state", start_seconds=SECONDS) as control:
        wait_until(lambda: any(c.name == "clinic-7" for c in control.clients()), SECONDS, *reader.running.values())
    for line in commands(section("state.md", "Backup and restore")):
        # No client was forgotten since the backup.
        reader.read(line.replace("--receipts receipts/", "--no-receipts"))
    assert (reader.directory / "new" / "federation.json").exists()


def test_the_commands_for_kubernetes_make_valid_secrets(reader: Reader) -> None:
    kubernetes_validate = pytest.importorskip("kubernetes_validate")
    if not shutil.which("kubectl"):
        pytest.skip("kubectl is not installed")
    for line in commands(section("deploy-hosts.md", "Kubernetes")):
        reader.read(line)
    secrets = {}
    for name in ("server-tls", "client-tls"):
        made = yaml.safe_load((reader.directory / f"{name}.yaml").read_text())
        kubernetes_validate.validate(made, kubernetes_validate.latest_version(), strict=True)
        secrets[made["metadata"]["name"]] = set(made["data"])
    assert secrets["puf-server-tls"] == {"ca.crt", "tls.crt", "tls.key"}
    job = next(yaml.safe_load_all((ROOT / "deploy" / "kubernetes" / "clients.yaml").read_text()))
    names = [f"puf-client-{i}" for i in range(job["spec"]["completions"])]
    assert secrets["puf-client-tls"] == {"ca.crt", *(f"{n}.{end}" for n in names for end in ("crt", "key"))}
