"""Every command of the pages on requests, receipts, the audit log, methods and the operator's work, on one federation."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.e2e.pasting import commands
from tests.running import TINY, make_state, running, tiny_config

from puf_client.cli.main import main as puf_client
from puf_client.data import DataContext, load_data
from puf_client.data.labels import labels_of
from puf_common.config.exit_codes import Exit
from puf_common.models.module_tensors import manifest_of, payload_of
from puf_common.models.networks import build
from puf_common.tensors.manifest import Manifest
from puf_lab.federations.processes import wait_until
from puf_server.cli.main import main as puf_server
from puf_server.core.methods import base
from puf_server.core.state.rounds import Combine
from puf_server.runtime.server import Server
from puf_server.storage.state_store import key_fingerprint

SECONDS = 90.0
# clinic-7 leases the shard that its commands name.
CLIENTS = {"clinic-5": "0/3", "clinic-6": "1/3", "clinic-7": "lease:2"}
DOCS = Path(__file__).parents[2] / "docs"
PROGRAMS = {"puf-client": puf_client, "puf-server": puf_server}
PUBLIC = """
from puf_client.data import load_data

def public_images(ctx):
    return load_data("digits", ctx)
"""


def lines_of(page: str, *, count: int) -> list[str]:
    found = commands((DOCS / page).read_text())
    assert len(found) == count, f"{page} has other commands than this test runs"
    return found


class Reader:
    """Runs commands in this process and replaces the examples of the pages."""

    def __init__(self, server: Server, pool: ThreadPoolExecutor) -> None:
        self.server, self.pool = server, pool
        self.examples: dict[str, str] = {}

    def run(self, line: str, *more: str) -> None:
        code = self._call(line, *more)
        assert code == Exit.OK, line

    def start(self, line: str, *more: str) -> Future[int]:
        return self.pool.submit(self._call, line, *more)

    def _call(self, line: str, *more: str) -> int:
        program, *words = shlex.split(line, comments=True)
        for example, here in self.examples.items():
            words = [word.replace(example, here) for word in words]
        return PROGRAMS[program]([*words, *more])

    def wait_for_tickets(self, number: int) -> str:
        """The id of the newest of so many tickets."""
        wait_until(lambda: len(self.server.engine.state.tickets) == number, SECONDS)
        return list(self.server.engine.state.tickets)[-1]


@pytest.fixture
def reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Reader]:
    """A federation whose three clients have trained. Its directory is `state`."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "my_task", raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "home"))
    model = build("digits-cnn", {}, 1)
    manifest = manifest_of(model)
    config = tiny_config(
        recipe={"batch_size": 10},
        plan={"start_clients": 3, "shards": 3, "heartbeat_seconds": 0.2, "absent_seconds": 3.0},
        forgetting={"max_recovery_rounds": 1},
    ).model_copy(update={"model": "digits-cnn"})
    make_state(tmp_path / "state", config, manifest, payload_of(model, manifest))
    with running(tmp_path / "state") as server, ThreadPoolExecutor(6) as pool:
        where = f'server = "127.0.0.1:{server.port}"\n'
        data = 'data = "digits"\nshard = "2/3"\n[data_option]\nper_client = "20"\n'
        Path("puf-client.toml").write_text(where + data)
        monkeypatch.setenv("PUF_OPERATOR", f"127.0.0.1:{server.operator_port}")
        opened = Reader(server, pool)
        workers = [
            opened.start(f"puf-client run --name {name} --shard {shard} --config puf-client.toml")
            for name, shard in CLIENTS.items()
        ]
        try:
            wait_until(lambda: server.engine.state.trained == 2, SECONDS)
            yield opened
        finally:
            if not server.stopped.is_set():
                puf_server(["stop"])
        assert {worker.result(SECONDS) for worker in workers} == {Exit.OK, Exit.FORGOTTEN}


def test_the_commands_of_the_pages_work(reader: Reader, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = load_data("digits", DataContext(shard=2, shards=3, options={"per_client": "20"}))
    labels = [int(label) for label in labels_of(data)]
    kept = [sample for sample, label in zip(data.ids, labels, strict=True) if label != labels[0]]
    Path("ids.txt").write_text("\n".join(kept[:2]))
    whole, samples, pause, one_class, resume, listed, used, exclude = lines_of("forget.md", count=8)

    reader.examples = {"patient-17": kept[0]}
    reader.run(listed)
    reader.run(used)
    reader.run(pause)
    asked = reader.start(one_class.replace("class 3", f"class {labels[0]}"), "--yes")
    reader.wait_for_tickets(1)
    reader.run(resume)
    assert asked.result(SECONDS) == Exit.OK
    reader.run(samples, "--yes")
    reader.examples["t-1"] = reader.wait_for_tickets(2)
    reader.run(exclude)
    reader.run(whole, "--yes")
    assert reader.server.engine.state.members["clinic-7"].status == "forgotten"

    ticket = reader.examples["t-1"] = reader.wait_for_tickets(3)
    reader.examples |= {
        "FINGERPRINT": key_fingerprint(tmp_path / "state"),
        "DIR": "home/puf",
        "receipt.json": f"receipt-{ticket}.json",
    }
    for line in lines_of("receipt.md", count=3):
        reader.run(line)
    for line in lines_of("state.md", count=4)[:2]:
        reader.run(line)

    (tmp_path / "my_task.py").write_text(PUBLIC)
    reader.examples["fed:7300"] = f"127.0.0.1:{reader.server.port}"
    *of_the_server, distiller = lines_of("methods.md", count=5)
    for line in of_the_server:
        reader.run(line)
    public = reader.start(distiller)
    wait_until(lambda: "public" in reader.server.engine.state.members or public.done(), SECONDS)
    *before, stop = lines_of("operate.md", count=10)
    assert stop.startswith("puf-server stop")
    for line in before:
        reader.run(line)
    reader.run(stop)
    assert public.result(SECONDS) == Exit.OK
    shown = capsys.readouterr().out
    for sentence in ("request of clinic-7 was applied", "22 training rounds planned", "shard 2 is free", "SERVING"):
        assert sentence in shown


def test_the_method_of_the_page() -> None:
    [code] = re.findall(r"```python\n(.*?)```", (DOCS / "methods.md").read_text(), re.DOTALL)
    names: dict[str, Any] = {"Manifest": Manifest, "Sequence": Sequence, "Combine": Combine, **vars(base)}
    exec(code, names)
    method = names["Halve"](base.Options())
    weight = TINY.tensors[0]
    block = base.TensorBlock(tensor=weight, parameter=0, w=np.ones(weight.shape), others={}, updates=())
    assert (method.rule(Combine(rule="halve"), TINY, ())(block) == 0.5).all()
