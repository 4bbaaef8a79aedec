"""A federation whose files are in an object store: trains, forgets, and leaves no byte of the forgotten client."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from botocore.awsrequest import AWSResponse
from tests.canary import found, searched, windows
from tests.grpc.raw import Raw, update_bytes
from tests.object_store import Answer, ObjectStore
from tests.postgres import Postgres
from tests.running import make_state, running, tiny_config
from tests.server.local import Local

from puf_lab.federations.processes import wait_until
from puf_server.core.config import FederationConfig
from puf_server.runtime.server import Server
from puf_server.storage.object_files import ObjectFiles

NAMES = ("anna", "bert", "cleo")
VALUES = {"anna": 0.0731, "bert": 0.2, "cleo": 0.3}


def config() -> FederationConfig:
    return tiny_config(plan={"rounds": 1, "min_clients": 3}, forgetting={"blind_recovery_rounds": 1})


class Place:
    """A federation in PostgreSQL and a bucket. `keys` is its local directory."""

    def __init__(self, directory: Path, postgres: Postgres, store: ObjectStore) -> None:
        self.store, self.url, self.database = store, store.bucket(), postgres.address()
        self.keys = make_state(directory / "keys", config(), database=self.database, objects=self.url)

    @contextmanager
    def served(self) -> Iterator[tuple[Server, dict[str, Raw]]]:
        with ExitStack() as stack:
            server = stack.enter_context(running(self.keys, database=self.database))
            yield server, {name: stack.enter_context(Raw(server.port, name)) for name in NAMES}


@pytest.fixture
def place(tmp_path: Path, postgres: Postgres, object_store: ObjectStore) -> Place:
    return Place(tmp_path, postgres, object_store)


def test_a_completed_request_leaves_no_byte_in_any_version(place: Place, tmp_path: Path) -> None:
    with place.served() as (server, clients):
        anna, others = clients["anna"], [clients["bert"], clients["cleo"]]
        for client in clients.values():
            client.join()
        payload = update_bytes(VALUES["anna"])
        canaries = windows("update", payload, 3) or {"update": payload[:32]}
        anna.submit(anna.wait().train, payload)
        assert set(searched(place.store.objects(place.url), canaries)) == set(canaries)
        for client in others:
            client.submit(client.wait().train, update_bytes(VALUES[client.name]))
        wait_until(lambda: server.engine.state.version == 1, 20)
        anna.file()
        work = anna.wait().train
        flipped = update_bytes(VALUES["anna"] * work.scale)
        canaries["flipped update"] = flipped[:32]
        anna.submit(work, flipped)
        for _ in ("unlearn", "recover"):
            for client in others:
                client.submit(client.wait().train, update_bytes(VALUES[client.name]))
        state = server.engine
        wait_until(lambda: [t.state for t in state.state.tickets.values()] == ["completed"], 20)
        wait_until(lambda: not searched(place.store.objects(place.url), canaries), 10)
        model = anna.fetch(state.state.version)
        kept = [m for m in state.state.models.values() if m.status != "deleted"]
    assert not place.store.unfinished(place.url)
    assert not found(tmp_path, canaries)
    models = [key for key in place.store.keys(place.url) if key.startswith("models/")]
    assert place.store.keys(place.url) == ["completed.json", *models]
    assert len(models) == len(kept)
    # Neither keys nor configuration are in the bucket; models and updates are not in the directory.
    assert (place.keys / "signing-key.pem").exists()
    assert not [path for folder in ("models", "spool") for path in (place.keys / folder).glob("*")]
    assert model == the_same_in_a_directory(tmp_path / "reference")


def the_same_in_a_directory(directory: Path) -> bytes:
    local = Local(make_state(directory, config()))
    local.join(*NAMES)
    for name in NAMES:
        local.submit(name, payload=update_bytes(VALUES[name]))
    local.engine.fold_ready()
    local.forget("anna")
    scale = local.handlers.work("anna", local.engine.state.members["anna"].session).train.scale  # type: ignore[union-attr]
    local.submit("anna", payload=update_bytes(VALUES["anna"] * scale))
    for _ in ("unlearn", "recover"):
        for name in ("bert", "cleo"):
            local.submit(name, payload=update_bytes(VALUES[name]))
        local.engine.fold_ready()
    model = local.engine.store.models.payload(local.engine.state.models[local.engine.state.version])
    local.engine.close()
    return bytes(model)


def test_a_changed_object_is_refused_and_its_client_is_asked_again(place: Place) -> None:
    with place.served() as (server, clients):
        for client in clients.values():
            client.join()
        anna, *others = clients.values()
        anna.submit(anna.wait().train, update_bytes(VALUES["anna"]))
        (key,) = (key for key in place.store.keys(place.url) if key.startswith("spool/"))
        place.store.change(place.url, key, update_bytes(9.0))
        for client in others:
            client.submit(client.wait().train, update_bytes(VALUES[client.name]))
        again = anna.wait().train
        assert server.engine.state.version == 0
        anna.submit(again, update_bytes(VALUES["anna"]))
        wait_until(lambda: server.engine.state.version == 1, 20)


def test_a_store_that_refuses_writes_is_unavailable_and_shown(place: Place) -> None:
    with place.served() as (server, clients):
        for client in clients.values():
            client.join()
        anna = clients["anna"]
        work = anna.wait().train
        bucket = place.url.split("/")[2]
        place.store.client.delete_objects(
            Bucket=bucket,
            Delete={"Objects": [{"Key": f"federation/{key}"} for key in place.store.keys(place.url)]},
        )
        place.store.client.delete_bucket(Bucket=bucket)
        with pytest.raises(grpc.RpcError) as refused:
            anna.submit(work)
        assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
        assert "NoSuchBucket" in (refused.value.details() or "")
        assert "the update was not stored" in server.engine.troubles.text()
        assert server.engine.state.round is not None
        assert not server.engine.state.round.received


def test_a_model_that_cannot_be_stored_is_shown_and_summed_again(place: Place) -> None:
    with place.served() as (server, clients):
        files = server.engine.store.files
        assert isinstance(files, ObjectFiles)
        refused = threading.Event()

        def refuse(request: Any, **_: object) -> AWSResponse | None:
            if "/models/" not in request.url or refused.is_set():
                return None
            body = b"<Error><Code>AccessDenied</Code></Error>"
            refused.set()
            return AWSResponse(request.url, 403, {"content-type": "application/xml"}, Answer(body))

        files._client.meta.events.register("before-send.s3.PutObject", refuse)
        for client in clients.values():
            client.join()
        for name, client in clients.items():
            client.submit(client.wait().train, update_bytes(VALUES[name]))
        wait_until(lambda: "AccessDenied" in server.engine.troubles.text(), 20)
        assert server.engine.state.version == 0
        wait_until(lambda: server.engine.state.version == 1 and not server.engine.troubles.text(), 20)


def test_two_servers_share_a_bucket_and_no_directory(place: Place, tmp_path: Path) -> None:
    other = shutil.copytree(place.keys, tmp_path / "other machine")
    with (
        place.served() as (first, clients),
        running(other, database=place.database) as second,
        Raw(second.port, "bert") as bert,
    ):
        everyone = (clients["anna"], bert, clients["cleo"])
        for client in everyone:
            client.join()
        for client in everyone:
            client.submit(client.wait().train, update_bytes(VALUES[client.name]))
        wait_until(lambda: first.engine.state.version == second.engine.state.version == 1, 20)
        assert bert.fetch(1) == clients["anna"].fetch(1)
        wait_until(lambda: len(place.store.keys(place.url)) == 2, 10)
    assert [key.partition("-")[0] for key in place.store.keys(place.url)] == ["models/v000000", "models/v000001"]
