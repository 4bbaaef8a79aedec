"""The commands of the pages on PostgreSQL and the object store work as written, against real services on this machine."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import quote

import pytest
from tests.e2e.federation import SECONDS
from tests.e2e.pasting import Terminal, blocks
from tests.object_store import ObjectStore
from tests.pki import Pki
from tests.postgres import Postgres

from puf_common.config.exit_codes import Exit
from puf_lab.federations.processes import Process, wait_until

pytestmark = pytest.mark.e2e

DOCS = Path(__file__).parents[2] / "docs"
ROLE = "puf_page"


class Reader(Terminal):
    """Replaces the addresses, directories and numbers of a page."""

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        super().__init__(directory, stack)
        Pki(directory / "certs")
        self.examples = {"--workers 4": "--workers 2"}

    def read(self, text: str) -> str:
        for example, here in self.examples.items():
            text = text.replace(example, here)
        return text

    def set_up(self, block: str) -> Process:
        """Follows the first block of a page. Returns the server, which serves."""
        install, *exports, init, serve = block.splitlines()
        assert install.startswith("pip install 'puf-fl[train,postgres")
        for line in exports:
            word, *variables = shlex.split(self.read(line), comments=True)
            assert word == "export"
            self.env |= dict(variable.split("=", 1) for variable in variables)
        done = self.paste(self.read(init))
        assert done is not None
        assert done.code == Exit.OK, done.err
        self.paste(self.read(serve))
        [server] = self.running.values()
        wait_until(lambda: server.log.read_text().count('"serving"') == 2, SECONDS, server)
        return server


@pytest.fixture
def reader(tmp_path: Path, postgres: Postgres) -> Iterator[Reader]:
    with ExitStack() as stack:
        opened = Reader(tmp_path, stack)
        opened.examples |= {
            "/etc/puf/db-ca.crt": quote(str(postgres.ca), safe=""),
            "/shared/fed": str(tmp_path / "fed"),
        }
        yield opened


def test_the_commands_of_the_page_on_postgresql_work(reader: Reader, postgres: Postgres) -> None:
    page = (DOCS / "postgres.md").read_text()
    [role] = re.findall(r"```sql\n(.*?)```", page, re.DOTALL)
    first, after = re.sub(r"\bpuf\b", ROLE, role).split(f"-- Connected to the database {ROLE}:\n")
    postgres.administer(*first.splitlines())
    postgres.administer(*after.splitlines(), database=ROLE)
    reader.examples["puf@db.example.org/puf"] = f"{ROLE}@localhost:{postgres.port}/{ROLE}"
    set_up, backup = blocks(page)
    server = reader.set_up(set_up)
    assert shutil.which("pg_dump"), "Debian's package `postgresql` installs it"
    done = reader.paste_block(reader.read(backup.replace("-n puf ", f"-n {ROLE} ")))
    assert done.code == Exit.OK, done.err
    assert "resumed" in done.out
    assert (reader.directory / "fed.copy" / "federation.json").exists()
    assert (reader.directory / "puf.dump").read_bytes().startswith(b"PGDMP")
    assert server.end() == Exit.OK


def test_the_commands_of_the_page_on_the_object_store_work(
    object_store: ObjectStore, reader: Reader, postgres: Postgres
) -> None:
    page = (DOCS / "files.md").read_text()
    [rights] = re.findall(r"```json\n(.*?)```", page, re.DOTALL)
    assert {entry["Effect"] for entry in json.loads(rights)["Statement"]} == {"Allow"}
    url = object_store.bucket()
    reader.examples |= {"s3://fed-files/hospital": url, "/var/lib/puf/fed": str(reader.directory / "keys")}
    database = re.findall(r"postgresql://[^']+", page)[0]
    reader.examples = {database: postgres.tls_address(postgres.ca)} | reader.examples
    [set_up] = blocks(page)
    server = reader.set_up(set_up)
    assert [key.partition("-")[0] for key in object_store.keys(url)] == ["models/v000000"]
    assert not list((reader.directory / "keys").rglob("*.safetensors"))
    assert server.end() == Exit.OK
