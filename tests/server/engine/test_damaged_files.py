"""Bits that change on disk while a server runs: the file is named, and no changed bit enters a model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.crash.workload import NAMES, Small, make, run
from tests.databases import sqlite
from tests.grpc.raw import Raw
from tests.running import make_state, running, tiny_config

from puf_common.errors import NotNow, StorageCorrupted
from puf_lab.federations.processes import wait_until
from puf_server.cli.operator_client import OperatorClient
from puf_server.core.state.rounds import Round
from puf_server.storage.layout import spool_name


@pytest.fixture(scope="module")
def digests(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The digests of all models of a federation without faults."""
    return run(tmp_path_factory.mktemp("undisturbed"))


def flip(path: Path, bit: int = 0) -> None:
    """Changes one bit, counted from the last byte."""
    content = bytearray(path.read_bytes())
    content[-1 - bit // 8] ^= 1 << bit % 8
    path.write_bytes(content)


def closed_round(directory: Path) -> tuple[Small, Round]:
    small = Small(directory)
    for _ in range(2):
        for name in NAMES:
            small._turn(name)
    current = small.engine.round_to_fold()
    assert current is not None
    return small, current


def finished(small: Small) -> list[str]:
    small.to_the_end()
    found = [m.digest for m in small.state.models.values()]
    small.close()
    return found


# The last bytes are an integer buffer, then floating buffers; 200 lies in the parameters. 287 is a sign or an exponent.
@pytest.mark.parametrize("bit", [0, 60, 100, 200, 287])
def test_an_update_with_a_changed_bit_is_asked_for_again(tmp_path: Path, digests: list[str], bit: int) -> None:
    small, current = closed_round(make(tmp_path))
    path = small.engine.store.layout.spool / spool_name(current, "b/main")
    flip(path, bit)
    result = small.engine.fold(current)
    assert str(path) in result.failure
    assert small.engine.commit(result) is False
    assert small.state.version == 0
    assert not small.state.halted
    assert small.state.round is not None
    assert [s.key for s in small.state.round.missing] == ["b/main"]
    assert not path.exists()
    (facts,) = (
        sqlite(small.engine.store).execute("SELECT facts FROM audit WHERE event = 'round.update_lost'").fetchone()
    )
    assert json.loads(facts)["key"] == "b/main"
    # It would stay in the log when the client is forgotten.
    assert path.name.rpartition(".")[2] not in facts
    assert finished(small) == digests


def test_a_client_is_not_blamed_for_a_bit_that_makes_the_sum_infinite(tmp_path: Path, digests: list[str]) -> None:
    small, current = closed_round(make(tmp_path))
    path = small.engine.store.layout.spool / spool_name(current, "b/main")
    content = bytearray(path.read_bytes())
    # The first parameter becomes infinite.
    content[:4] = b"\x00\x00\x80\x7f"
    path.write_bytes(content)
    small.engine.commit(small.engine.fold(current))
    assert small.state.members["b"].on_hold is None
    assert finished(small) == digests


def test_an_update_is_asked_for_again_after_its_loss_could_not_be_recorded(
    tmp_path: Path, digests: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    small, current = closed_round(make(tmp_path))
    flip(small.engine.store.layout.spool / spool_name(current, "b/main"))

    def full(*_: object, **__: object) -> None:
        raise NotNow("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(small.engine.store, "save", full)
        with pytest.raises(NotNow):
            small.engine.fold(current)
    assert small.engine.round_to_fold() is current
    assert small.engine.fold(current).failure
    assert finished(small) == digests


def test_a_base_model_with_a_changed_bit_is_named_and_nothing_is_committed(tmp_path: Path, digests: list[str]) -> None:
    small, current = closed_round(make(tmp_path))
    path = Path(small.engine.store.models.where(small.state.models[0]))
    flip(path, 200)
    with pytest.raises(StorageCorrupted, match="does not match its digest") as caught:
        small.engine.fold(current)
    assert str(path) in caught.value.message
    assert small.state.version == 0
    assert not list(path.parent.glob("*.part"))
    flip(path, 200)
    assert finished(small) == digests


def test_stored_history_with_a_changed_bit_is_named(tmp_path: Path) -> None:
    small, current = closed_round(make(tmp_path))
    small.engine.commit(small.engine.fold(current))
    for name in NAMES:
        small._turn(name)
    current = small.engine.round_to_fold()  # type: ignore[assignment]
    path = next((tmp_path / "state" / "history").glob("*.sums.b.*"))
    flip(path, 300)
    with pytest.raises(StorageCorrupted) as caught:
        small.engine.fold(current)
    assert str(path) in caught.value.message
    small.close()


def test_a_running_server_asks_again_and_shows_a_damaged_model(tmp_path: Path) -> None:
    state = make_state(tmp_path / "state", tiny_config(plan={"rounds": 2}))
    with (
        running(state) as server,
        Raw(server.port, "a") as a,
        Raw(server.port, "b") as b,
        OperatorClient(f"127.0.0.1:{server.operator_port}") as control,
    ):
        a.join()
        b.join()
        a.submit(a.wait().train)
        (spooled,) = (state / "spool").iterdir()
        flip(spooled)
        base = next((state / "models").glob("v000000-*"))
        flip(base)
        b.submit(b.wait().train)
        wait_until(lambda: base.name in control.status().trouble, 20)
        flip(base)
        # The model is whole again; now the update is found, and its client is asked again.
        a.submit(a.wait().train)
        wait_until(lambda: control.status().position.model_version == 1, 20)
        wait_until(lambda: control.status().trouble == "", 20)
