"""A small federation on disk in which a client was forgotten, driven by its handlers without a network."""

from __future__ import annotations

import hashlib
import time
from pathlib import Path
from typing import Any

from puf_common.tensors.chunks import chunks
from puf_common.v1 import federation_pb2 as fed
from puf_common.v1 import tickets_pb2 as tk
from puf_server.engine import receipts
from puf_server.engine.engine import Engine
from puf_server.rpc.requests import Handlers
from puf_server.storage.state_store import Store
from tests.databases import sqlite
from tests.grpc.raw import update_bytes
from tests.running import TINY, make_state, tiny_config

EVERYONE = ("anna", "bert", "cleo")


class OnDisk:
    """A federation opened by one process. Close it and open another to restart."""

    def __init__(self, directory: Path, database: str = "") -> None:
        self.directory = directory
        self.engine = Engine(Store.open(directory, database=database), time.time)
        self.handlers = Handlers(self.engine)

    def __enter__(self) -> OnDisk:
        return self

    def __exit__(self, *_: object) -> None:
        self.engine.close()

    def join(self, *names: str) -> None:
        for name in names:
            self.handlers.join(
                name,
                fed.JoinRequest(
                    instance=f"i-{name}",
                    samples=10,
                    manifest_fingerprint=TINY.fingerprint,
                    recipe_fingerprint=self.engine.config.recipe_fingerprint(),
                ),
            )

    def work(self) -> None:
        """All clients do their assignments until there are none."""
        for _ in range(100):
            self.engine.fold_ready()
            asked = [
                (name, reply.train)
                for name, member in self.engine.state.members.items()
                if member.status == "active"
                and member.session
                and (reply := self.handlers.work(name, member.session)) is not None
                and reply.HasField("train")
            ]
            if not asked:
                return
            for name, _ in asked:
                self.submit(name)
        raise AssertionError("the work does not end")

    def submit(self, name: str) -> float:
        """The client does its assignment. Returns the value of all entries of its update."""
        reply = self.handlers.work(name, self.engine.state.members[name].session)
        assert reply is not None
        work, value = reply.train, float(sum(name.encode()) % 7)
        payload = update_bytes(value)
        header = fed.UpdateHeader(
            key=work.key,
            base_version=work.base_version,
            samples=work.samples or self.engine.state.members[name].samples,
            applied_scale=work.scale if work.flip == tk.FLIP_CLIENT else 1.0,
            byte_length=len(payload),
            digest=hashlib.sha256(payload).digest(),
            manifest_fingerprint=TINY.fingerprint,
        )
        upload = self.handlers.begin_upload(name, header)
        for chunk in chunks(payload):
            upload.write(chunk)
        self.handlers.finish_upload(upload)
        return value

    def forget(self, name: str, **request: Any) -> str:
        usual: dict[str, Any] = {"request_key": f"k-{name}", "scope": tk.SCOPE_CLIENT, "reference": "case 7"}
        wanted = tk.UnlearningRequest(**(usual | request))
        ticket = self.handlers.tickets.file_unlearning(name, fed.FileUnlearningRequest(request=wanted)).ticket
        self.work()
        return ticket.id

    def events(self) -> list[str]:
        return [event for (event,) in sqlite(self.engine.store).execute("SELECT event FROM audit ORDER BY seq")]


def trained_state(directory: Path, database: str = "") -> Path:
    config = tiny_config(plan={"min_clients": 3}, forgetting={"blind_recovery_rounds": 1})
    make_state(directory, config, database=database)
    with OnDisk(directory, database) as f:
        f.join(*EVERYONE)
        f.work()
    return directory


def forgotten_state(root: Path) -> tuple[Path, Path]:
    """A state directory after cleo was forgotten, and cleo's receipt."""
    directory = trained_state(root / "state")
    with OnDisk(directory) as f:
        receipt = root / "receipt.json"
        receipt.write_bytes(receipts.issue(f.engine, f.forget("cleo"), "cleo"))
    return directory, receipt
