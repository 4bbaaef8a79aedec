"""SIGTERM to a real server: it finishes the open commit, other callers get UNAVAILABLE, the exit code is 0."""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest
from tests.grpc.raw import Raw, frames, status, update_bytes
from tests.running import make_state, running, tiny_config

from puf_common.config.exit_codes import Exit
from puf_common.v1 import federation_pb2 as fed
from puf_lab.federations.processes import Process, ServerProcess, program, wait_until
from puf_server.core.state.state import State
from puf_server.storage.layout import spool_name
from puf_server.storage.state_store import Store

pytestmark = pytest.mark.e2e


def armed(points: str) -> dict[str, str]:
    return {"PUF_FAILPOINTS": points, "PUF_TEST_FAILPOINTS": "yes"}


def reached(process: Process, point: str) -> bool:
    lines = [json.loads(line) for line in process.log.read_text().splitlines() if line.startswith("{")]
    return any(line.get("event") == "failpoint" and line["name"] == point for line in lines)


def state_in(directory: Path) -> State:
    store = Store.open(directory)
    try:
        return store.load()
    finally:
        store.close()


@pytest.mark.parametrize("point", ["fold.start", "fold.end", "commit.train.before"])
def test_a_round_that_is_being_summed_is_committed(tmp_path: Path, point: str) -> None:
    directory = make_state(tmp_path / "state")
    server = ServerProcess(directory, tmp_path / "server.log", env=armed(f"{point}=1*sleep(1500)"))
    with server, server.control, Raw(server.port, "a") as a, Raw(server.port, "b") as b, Raw(server.port, "c") as c:
        a.join()
        b.join()
        c.join()
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(c.wait, 60.0)
            works = [client.wait().train for client in (a, b)]
            for client, work in zip((a, b), works, strict=True):
                client.submit(work)
            wait_until(lambda: reached(server, point), 60, server)
            server.send(signal.SIGTERM)
            assert server.wait(10) == Exit.OK
            with pytest.raises(grpc.RpcError) as refused:
                waiting.result(timeout=10)
            assert status(refused.value)[0] == "UNAVAILABLE"
    state = state_in(directory)
    assert (state.version, state.number) == (1, 1)
    names = {p.name for p in (directory / "models").iterdir()}
    assert names == {f"v{m.version:06d}-{m.digest[:16]}.safetensors" for m in state.models.values()}
    assert not list((directory / "spool").iterdir())


def test_an_open_upload_gets_unavailable_and_does_not_delay_the_end(tmp_path: Path) -> None:
    directory = make_state(tmp_path / "state")
    arrived, ended = "upload.after_first_chunk", threading.Event()
    server = ServerProcess(directory, tmp_path / "server.log", env=armed(f"{arrived}=1*sleep(1)"))
    with server, server.control, Raw(server.port, "a") as a, Raw(server.port, "b") as b:
        a.join()
        b.join()
        payload = update_bytes()
        whole = list(frames(a.header(a.wait().train, payload), payload))

        def half() -> Iterator[fed.SubmitUpdateRequest]:
            yield from whole[:2]
            # The other chunks are never sent; the sender is still connected when the server ends.
            ended.wait(60)

        with ThreadPoolExecutor(1) as pool:
            sending = pool.submit(a.stub.SubmitUpdate, half(), metadata=a.options["metadata"], timeout=60)
            try:
                wait_until(lambda: reached(server, arrived), 60, server)
                server.send(signal.SIGTERM)
                assert server.wait(10) == Exit.OK
                with pytest.raises(grpc.RpcError) as refused:
                    sending.result(timeout=10)
            finally:
                ended.set()
        assert status(refused.value)[0] == "UNAVAILABLE"
    # The update was not acknowledged, so it does not count.
    state = state_in(directory)
    assert state.round is not None
    assert not state.round.received


def test_a_server_that_is_still_recovering_also_ends_in_order(tmp_path: Path) -> None:
    directory = make_state(tmp_path / "state", tiny_config(plan={"absent_seconds": 600.0}))
    with running(directory) as server, Raw(server.port, "a") as a, Raw(server.port, "b") as b:
        a.join()
        b.join()
        a.submit(a.wait().train)
        current = server.engine.state.round
        assert current is not None
        path = server.engine.store.layout.spool / spool_name(current, "a/main")
    # The next start then writes something and can be interrupted there.
    path.unlink()
    words = [program("puf-server"), "serve", "--state", str(directory), "--insecure", "--log-format", "json"]
    words += ["--listen", "127.0.0.1:0", "--operator", "127.0.0.1:0"]
    with Process(words, tmp_path / "server.log", env=armed("audit.write=1*sleep(1500)")) as process:
        wait_until(lambda: reached(process, "audit.write"), 60, process)
        process.send(signal.SIGTERM)
        assert process.wait(10) == Exit.OK
    assert state_in(directory).round is not None
