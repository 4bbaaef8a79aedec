"""Servers whose files are in an object store are killed while they send an update and a model. No bit changes."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import numpy as np
import pytest
from tests.e2e.federation import SECONDS
from tests.grpc.raw import Raw
from tests.object_store import ObjectStore
from tests.postgres import Postgres
from tests.running import make_state, running, tiny_config
from tests.server.local import Local

from puf_common.tensors.manifest import MODEL, Manifest, TensorSpec
from puf_lab.federations.processes import Process, program, wait_until

pytestmark = pytest.mark.e2e

# More than one part of an upload to the store.
LARGE = Manifest((TensorSpec("w", "f32", (2_200_000,)),))
NAMES = ("a", "b")
CONFIG = tiny_config(plan={"min_clients": 2, "rounds": 1, "absent_seconds": 600.0})


def update(name: str) -> bytes:
    return np.random.default_rng(NAMES.index(name)).standard_normal(2_200_000, "<f4").tobytes()


def first_model() -> bytearray:
    return bytearray(LARGE.nbytes(MODEL))


class Place:
    def __init__(self, directory: Path, database: str, store: ObjectStore) -> None:
        self.url, self._beside = store.bucket(), directory.parent
        self._where = ["--state", database, "--files", self.url, "--keys", str(directory)]
        make_state(directory, CONFIG, LARGE, first_model(), database=database, objects=self.url)

    @contextmanager
    def served(self, failpoints: str) -> Iterator[tuple[Process, list[Raw]]]:
        announced = self._beside / "ports"
        announced.unlink(missing_ok=True)
        flags = ["--insecure", "--listen", "127.0.0.1:0", "--operator", "127.0.0.1:0", "--announce", str(announced)]
        env = {"PUF_TEST_FAILPOINTS": "yes", "PUF_FAILPOINTS": failpoints}
        with Process([program("puf-server"), "serve", *self._where, *flags], self._beside / "log", env=env) as server:
            wait_until(lambda: announced.exists() and announced.read_text().endswith("\n"), SECONDS, server)
            clients = [Raw(int(announced.read_text().split()[0]), name) for name in NAMES]
            try:
                yield server, clients
            finally:
                for client in clients:
                    client.channel.close()


def submit(client: Raw) -> None:
    payload, work = update(client.name), client.wait().train
    header = client.header(work, payload, manifest_fingerprint=LARGE.fingerprint)
    client.send(header, payload, chunk=1 << 20)


def test_a_server_killed_while_it_sends_an_update_and_a_model(
    tmp_path: Path, postgres: Postgres, object_store: ObjectStore
) -> None:
    directory, database = tmp_path / "keys", postgres.address()
    place = Place(directory, database, object_store)
    # All parts of the second update are sent; the object does not exist yet.
    with place.served("spool.after_fsync=1*off->kill") as (server, (a, b)):
        for client in (a, b):
            client.join()
        submit(a)
        with pytest.raises(grpc.RpcError):
            submit(b)
        assert server.wait(SECONDS) == -signal.SIGKILL
    assert [key.partition(".b.")[0] for key in object_store.unfinished(place.url)] == ["federation/spool/1.1"]
    assert len(object_store.keys(place.url)) == 2
    # All parts of the model are sent.
    with place.served("model.after_fsync=kill") as (server, (a, b)):
        assert not object_store.unfinished(place.url)
        for client in (a, b):
            client.join()
        submit(b)
        assert server.wait(SECONDS) == -signal.SIGKILL
    (left,) = object_store.unfinished(place.url)
    assert left.startswith("federation/models/v000001-")
    with running(directory, database=database) as last, Raw(last.port, "a") as a:
        wait_until(lambda: last.engine.state.version == 1, SECONDS)
        a.join()
        model = a.fetch(1)
    assert model == in_a_directory(tmp_path / "reference")
    assert not object_store.unfinished(place.url)
    assert [key.partition("-")[0] for key in object_store.keys(place.url)] == ["models/v000000", "models/v000001"]


def in_a_directory(directory: Path) -> bytes:
    local = Local(make_state(directory, CONFIG, LARGE, first_model()))
    local.join(*NAMES)
    for name in NAMES:
        local.submit(name, payload=update(name))
    local.engine.fold_ready()
    model = local.engine.store.models.payload(local.engine.state.models[1])
    local.engine.close()
    return bytes(model)
