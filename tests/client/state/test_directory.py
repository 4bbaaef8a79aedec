"""The state directory survives kills, is private, and names no sample."""

from __future__ import annotations

import json
import stat
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from puf_client.state.directory import StateDirectory, default_root
from puf_common.errors import Mismatch, StorageCorrupted, UsageError
from puf_common.receipts.signing_key import fingerprint

IDS = [f"patient-{i}" for i in range(20)]


@pytest.fixture
def state(tmp_path: Path) -> StateDirectory:
    return StateDirectory.of("fed-1", "clinic-7", tmp_path)


def test_nothing_is_excluded_at_first_and_nothing_is_written(state: StateDirectory) -> None:
    assert not state.excluded(IDS).any()
    assert state.forgotten is None
    assert not state.path.exists()


def test_a_filed_request_excludes_its_samples_in_every_later_process(state: StateDirectory) -> None:
    state.prepare("r1", IDS[:3])
    state.filed("r1", "t1")
    again = StateDirectory(state.path)
    assert again.excluded(IDS).tolist() == [True] * 3 + [False] * 17
    assert again.forget_indices(IDS, "r1").tolist() == [0, 1, 2]


def test_the_order_of_the_data_does_not_matter(state: StateDirectory) -> None:
    state.prepare("r1", IDS[:3])
    state.filed("r1", "t1")
    assert state.forget_indices(IDS[::-1], "r1").tolist() == [17, 18, 19]
    assert state.forget_indices(IDS, "r1").tolist() == [0, 1, 2]


def test_a_prepared_request_takes_effect_with_its_ticket(state: StateDirectory) -> None:
    state.prepare("r1", IDS[:3])
    assert state.unsettled()
    assert not state.excluded(IDS).any()
    state.settle([("r1", "t1", False), ("of-another-machine", "t2", False)])
    assert not state.unsettled()
    assert state.excluded(IDS).sum() == 3
    assert len(state.exclusions()) == 1


def test_withdrawing_returns_only_the_samples_of_that_request(state: StateDirectory) -> None:
    for key, ids in (("r1", IDS[:3]), ("r2", IDS[2:5])):
        state.prepare(key, ids)
        state.filed(key, f"ticket-of-{key}")
    state.withdraw("r1")
    assert np.flatnonzero(state.excluded(IDS)).tolist() == [2, 3, 4]
    assert state.exclusion("r1").withdrawn  # type: ignore[union-attr]


def test_a_withdrawn_request_that_is_filed_again_under_its_key_takes_effect(state: StateDirectory) -> None:
    """A server that was restored from a backup does not know the withdrawn request. The same key is then free."""
    state.prepare("r1", IDS[:3])
    state.filed("r1", "t1")
    state.withdraw("r1")
    state.prepare("r1", IDS[:3])
    assert not state.excluded(IDS).any()
    state.filed("r1", "t2")
    assert np.flatnonzero(state.excluded(IDS)).tolist() == [0, 1, 2]


def test_an_unknown_request_is_explained(state: StateDirectory) -> None:
    with pytest.raises(UsageError, match="another machine"):
        state.forget_indices(IDS, "r9")


def test_a_refused_request_changes_nothing_until_the_server_has_its_ticket(state: StateDirectory) -> None:
    """A delayed copy of the refused message can be filed later."""
    state.prepare("r1", IDS[:3])
    assert not state.excluded(IDS).any()
    assert state.unsettled()
    state.settle([("r1", "t1", False)])
    assert np.flatnonzero(state.excluded(IDS)).tolist() == [0, 1, 2]


def test_the_same_samples_give_the_same_key_in_any_order(state: StateDirectory) -> None:
    assert state.request_key(IDS[:3]) == state.request_key(IDS[2::-1])
    assert state.request_key(IDS[:3]) != state.request_key(IDS[:4])


def test_files_are_private_and_name_no_sample(state: StateDirectory) -> None:
    state.prepare("r1", IDS[:3])
    state.mark_forgotten(membership=1)
    files = [path for path in state.path.rglob("*") if path.is_file()]
    assert len(files) == 3
    for path in files:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert b"patient" not in path.read_bytes()
    for folder in (state.path, state.path / "requests"):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_two_directories_hash_the_same_sample_differently(tmp_path: Path) -> None:
    one, two = (StateDirectory(tmp_path / n).prepare("r", IDS[:1]) for n in "ab")
    assert one.hashes != two.hashes


def test_the_first_record_of_being_forgotten_is_kept(state: StateDirectory) -> None:
    state.mark_forgotten(membership=2, ticket_id="t1")
    state.mark_forgotten(membership=3)
    assert state.forgotten is not None
    assert (state.forgotten["membership"], state.forgotten["ticket_id"]) == (2, "t1")
    state.clear_forgotten()
    assert state.forgotten is None


def test_a_damaged_file_is_named_and_does_not_mean_no_exclusions(state: StateDirectory) -> None:
    state.prepare("r1", IDS[:3])
    path = next((state.path / "requests").iterdir())
    for text in ("", "{}", "[]", '{"request_key": 1}'):
        path.write_text(text)
        with pytest.raises(StorageCorrupted, match="r1"):
            state.excluded(IDS)


def test_a_damaged_salt_is_named(state: StateDirectory) -> None:
    state.prepare("r1", IDS[:3])
    (state.path / "salt").write_bytes(b"short")
    with pytest.raises(StorageCorrupted, match="salt"):
        StateDirectory(state.path).request_key(IDS)


def test_unfinished_files_of_a_killed_writer_are_not_read(state: StateDirectory) -> None:
    state.prepare("r1", IDS[:3])
    (state.path / "requests" / ".r2.json.abc").write_text("half a fi")
    assert [e.request_key for e in state.exclusions()] == ["r1"]


def test_names_from_the_network_do_not_lead_out_of_the_directory(tmp_path: Path) -> None:
    state = StateDirectory.of("../../etc", "clinic-7", tmp_path)
    state.prepare("../../../passwd", IDS[:1])
    assert tmp_path in state.path.resolve().parents
    assert all(path.resolve().is_relative_to(state.path) for path in state.path.rglob("*"))
    assert state.exclusion("../../../passwd") is not None
    with pytest.raises(UsageError, match="name"):
        StateDirectory.of("fed-1", "../clinic", tmp_path)


def test_the_default_follows_the_platform(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert default_root() == tmp_path / "puf"
    monkeypatch.setenv("XDG_STATE_HOME", "relative/does/not/count")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_root() == tmp_path / ".local" / "state" / "puf"


def test_a_directory_that_cannot_be_written_is_a_usage_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="--state"):
        StateDirectory(tmp_path / "file" / "x").prepare("r1", IDS[:1])


def test_concurrent_processes_agree_on_the_salt(tmp_path: Path) -> None:
    together = threading.Barrier(8)

    def key(_: int) -> str:
        together.wait()
        return StateDirectory(tmp_path / "state").request_key(IDS)

    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(key, range(8)))) == 1


def test_the_first_servers_key_is_pinned_and_others_are_refused(state: StateDirectory) -> None:
    first, second = bytes(32), bytes([1]) * 32
    assert state.server_key == b""
    state.check_server_key(second)
    state.pin_server_key(b"")
    assert not state.path.exists()
    state.pin_server_key(first)
    state.pin_server_key(first)
    assert StateDirectory(state.path).server_key == first
    assert stat.S_IMODE((state.path / "server-key.json").stat().st_mode) == 0o600
    for key, told in ((second, fingerprint(second)), (b"", "missing")):
        with pytest.raises(Mismatch) as caught:
            state.pin_server_key(key)
        assert told in caught.value.message
        assert fingerprint(first) in caught.value.message
    assert state.server_key == first


def test_a_damaged_pin_does_not_mean_no_pin(state: StateDirectory) -> None:
    state.pin_server_key(bytes(32))
    for junk in ("{}", '{"key": "zz"}', "junk"):
        (state.path / "server-key.json").write_text(junk)
        with pytest.raises(StorageCorrupted, match="server-key"):
            state.pin_server_key(bytes(32))


def test_a_lost_salt_is_not_replaced(state: StateDirectory) -> None:
    state.prepare("r1", IDS[:3])
    state.filed("r1", "t1")
    (state.path / "salt").unlink()
    with pytest.raises(StorageCorrupted, match="trained on again"):
        StateDirectory(state.path).excluded(IDS)
    with pytest.raises(StorageCorrupted, match="trained on again"):
        StateDirectory(state.path).prepare("r2", IDS[:1])
    assert not (state.path / "salt").exists()


def test_only_the_client_returns_samples_to_training(state: StateDirectory) -> None:
    """The samples of a request that another one took over stay excluded."""
    state.prepare("r1", IDS[:3])
    state.filed("r1", "t1")
    state.settle([("r1", "t1", True)])
    assert state.excluded(IDS).sum() == 3
    # Killed between the server's answer and its own write: the next run completes the withdrawal.
    state.withdrawing("r1", True)
    assert state.unsettled()
    assert state.excluded(IDS).sum() == 3
    state.settle([("r1", "t1", True)])
    assert not state.unsettled()
    assert not state.excluded(IDS).any()


def test_a_refused_withdrawal_changes_nothing(state: StateDirectory) -> None:
    state.prepare("r1", IDS[:3])
    state.filed("r1", "t1")
    state.withdrawing("r1", True)
    state.settle([("r1", "t1", False)])
    assert state.excluded(IDS).sum() == 3
    state.withdrawing("r1", False)
    assert not state.unsettled()


def test_withdrawing_a_repeated_request_also_withdraws_the_first(state: StateDirectory) -> None:
    for key in ("r1", "r1-1"):
        state.prepare(key, IDS[:3])
        state.filed(key, f"ticket-of-{key}")
    state.withdraw("r1-1")
    assert not state.excluded(IDS).any()


def test_files_of_older_versions_can_be_read(state: StateDirectory) -> None:
    state.prepare("r1", IDS[:3])
    (path,) = (state.path / "requests").iterdir()
    content = json.loads(path.read_text())
    del content["withdrawing"]
    path.write_text(json.dumps({**content, "ticket_id": "t1", "withdrawn": True}))
    assert not state.excluded(IDS).any()
    state.settle([("r1", "t1", True)])
    assert not state.excluded(IDS).any()


def test_receipts_are_stored(state: StateDirectory) -> None:
    assert state.receipts() == []
    state.write_receipt("t-1", b"one")
    state.write_receipt("t-1", b"two")
    state.write_receipt("../t-2", b"three")
    assert sorted(StateDirectory(state.path).receipts()) == [b"three", b"two"]
    assert all(p.resolve().is_relative_to(state.path) for p in state.path.rglob("*"))
