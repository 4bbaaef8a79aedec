"""A restored federation is the same one, and a restore never undoes what was forgotten."""

from __future__ import annotations

import hashlib
import io
import json
import sqlite3
import tarfile
from pathlib import Path

import pytest
from tests.forgotten import EVERYONE, OnDisk, trained_state

from puf_common.config.exit_codes import Exit
from puf_common.errors import Mismatch, StorageCorrupted, TransferCorrupted, UsageError
from puf_common.receipts.signed_receipt import read
from puf_common.v1 import federation_pb2 as fed
from puf_server.cli.main import main
from puf_server.core.state.members import MemberStatus
from puf_server.core.state.models import ModelStatus
from puf_server.core.state.tickets import TicketState
from puf_server.engine import receipts
from puf_server.maintenance import audit_reader
from puf_server.maintenance.backup import backup
from puf_server.maintenance.restore import apply_receipts, restore
from puf_server.storage.layout import KEY_FILE
from puf_server.storage.state_store import Store


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return trained_state(tmp_path / "state")


def models(directory: Path) -> dict[str, str]:
    return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in (directory / "models").iterdir()}


def test_a_restored_federation_is_the_same_one(directory: Path, tmp_path: Path) -> None:
    made = backup(directory, tmp_path / "b.tar")
    assert made.path.stat().st_mode & 0o777 == 0o600
    assert hashlib.sha256(made.path.read_bytes()).hexdigest() == made.digest
    done = restore(tmp_path / "b.tar", tmp_path / "new")
    assert done.round == 2
    assert models(tmp_path / "new") == models(directory)
    assert (tmp_path / "new" / KEY_FILE).read_bytes() == (directory / KEY_FILE).read_bytes()
    assert (tmp_path / "new" / KEY_FILE).stat().st_mode & 0o777 == 0o600
    with OnDisk(directory) as old, OnDisk(tmp_path / "new") as new:
        assert new.engine.state.models == old.engine.state.models
        assert new.engine.store.key.public == old.engine.store.key.public
        assert new.events()[-1] == "federation.restored"
        assert old.events()[-1] == "backup.made"
    audit_reader.verify(tmp_path / "new", [])


def test_a_restored_federation_continues(directory: Path, tmp_path: Path) -> None:
    backup(directory, tmp_path / "b.tar")
    restore(tmp_path / "b.tar", tmp_path / "new")
    with OnDisk(tmp_path / "new") as f:
        f.join(*EVERYONE)
        ticket = f.forget("bert")
        assert f.engine.state.tickets[ticket].state is TicketState.COMPLETED


class TestForgottenStaysForgotten:
    @pytest.fixture
    def older(self, directory: Path, tmp_path: Path) -> tuple[Path, Path]:
        """A backup from before cleo was forgotten, and the folder with its receipt."""
        backup(directory, tmp_path / "b.tar")
        (tmp_path / "receipts").mkdir()
        with OnDisk(directory) as f:
            f.join(*EVERYONE)
            file = receipts.issue(f.engine, f.forget("cleo"), "cleo")
        (tmp_path / "receipts" / "receipt.json").write_bytes(file)
        return tmp_path / "b.tar", tmp_path / "receipts"

    def test_the_operators_receipts_open_the_ticket_again(self, older: tuple[Path, Path], tmp_path: Path) -> None:
        done = restore(older[0], tmp_path / "new", older[1])
        assert [reopened for _, reopened, _ in done.receipts] == [True]
        ticket_id = read((older[1] / "receipt.json").read_bytes()).ticket
        store = Store.open(tmp_path / "new")
        state = store.load()
        store.close()
        assert state.tickets[ticket_id].state is TicketState.PENDING
        assert {state.models[v].status for v in (1, 2)} == {ModelStatus.WITHDRAWN}
        with OnDisk(tmp_path / "new") as f:
            assert "ticket.reopened" in f.events()
            # After all clients joined, it is forgotten again; only then there is a receipt again.
            f.join(*EVERYONE)
            f.work()
            assert f.engine.state.tickets[ticket_id].state is TicketState.COMPLETED
            assert f.engine.state.members["cleo"].status is MemberStatus.FORGOTTEN
            assert {f.engine.state.models[v].status for v in (1, 2)} == {ModelStatus.DELETED}
            assert read(receipts.issue(f.engine, ticket_id, "cleo")).ticket == ticket_id
        audit_reader.verify(tmp_path / "new", [])

    def test_a_clients_own_receipt_opens_the_ticket_again(self, older: tuple[Path, Path], tmp_path: Path) -> None:
        restore(older[0], tmp_path / "new")
        file = (older[1] / "receipt.json").read_bytes()
        with OnDisk(tmp_path / "new") as f:
            reply = f.handlers.tickets.present_receipt("cleo", fed.PresentReceiptRequest(receipt=file))
            assert reply.reopened
            assert reply.ticket.id == read(file).ticket
            again = f.handlers.tickets.present_receipt("cleo", fed.PresentReceiptRequest(receipt=file))
            assert not again.reopened

    def test_a_receipt_shows_that_the_log_of_the_backup_is_older(
        self, older: tuple[Path, Path], tmp_path: Path
    ) -> None:
        restore(older[0], tmp_path / "new")
        with pytest.raises(StorageCorrupted, match=r"cut off|written anew"):
            audit_reader.verify(tmp_path / "new", [older[1] / "receipt.json"])

    def test_a_state_with_the_completed_ticket_is_not_changed(self, older: tuple[Path, Path], tmp_path: Path) -> None:
        backup(tmp_path / "state", tmp_path / "later.tar")
        done = restore(tmp_path / "later.tar", tmp_path / "new", older[1])
        assert [reopened for _, reopened, _ in done.receipts] == [False]

    def test_a_receipt_of_another_federation_stops_the_restore(self, older: tuple[Path, Path], tmp_path: Path) -> None:
        path = older[1] / "receipt.json"
        file = path.read_bytes()
        path.write_bytes(file.replace(b"cleo", b"bert"))
        with pytest.raises(TransferCorrupted, match=r"receipt\.json"):
            restore(older[0], tmp_path / "new", older[1])
        assert not (tmp_path / "new").exists()
        trained_state(tmp_path / "other")
        backup(tmp_path / "other", tmp_path / "other.tar")
        path.write_bytes(file)
        with pytest.raises(Mismatch):
            restore(tmp_path / "other.tar", tmp_path / "new", older[1])


class TestServedOnlyWithReceiptsOrWaiver:
    """After a restore the operator must state what was forgotten since the backup."""

    def test_without_receipts_or_a_waiver_it_is_not_served(self, directory: Path, tmp_path: Path) -> None:
        backup(directory, tmp_path / "b.tar")
        restore(tmp_path / "b.tar", tmp_path / "new")
        words = ["serve", "--state", str(tmp_path / "new"), "--insecure"]
        assert main(words) == Exit.REFUSED
        with pytest.raises(UsageError, match="exclude each other"):
            apply_receipts(tmp_path / "new", tmp_path, waived=True)
        with pytest.raises(UsageError, match="holds no receipts"):
            apply_receipts(tmp_path / "new", tmp_path, waived=False)
        apply_receipts(tmp_path / "new", None, waived=True)
        apply_receipts(tmp_path / "new", None, waived=False)
        with OnDisk(tmp_path / "new") as f:
            assert f.events()[-1] == "receipts.waived"
        audit_reader.verify(tmp_path / "new", [])

    def test_receipts_given_to_serve_open_tickets_again(self, directory: Path, tmp_path: Path) -> None:
        backup(directory, tmp_path / "b.tar")
        (tmp_path / "receipts").mkdir()
        with OnDisk(directory) as f:
            f.join(*EVERYONE)
            file = receipts.issue(f.engine, f.forget("cleo"), "cleo")
        (tmp_path / "receipts" / "receipt.json").write_bytes(file)
        restore(tmp_path / "b.tar", tmp_path / "new")
        apply_receipts(tmp_path / "new", tmp_path / "receipts", waived=False)
        apply_receipts(tmp_path / "new", None, waived=False)
        with OnDisk(tmp_path / "new") as f:
            assert f.engine.state.tickets[read(file).ticket].open

    def test_a_waiver_given_to_restore_is_enough(self, directory: Path, tmp_path: Path) -> None:
        backup(directory, tmp_path / "b.tar")
        words = ["restore", "--from", str(tmp_path / "b.tar"), "--state", str(tmp_path / "new"), "--no-receipts"]
        assert main(words) == Exit.OK
        apply_receipts(tmp_path / "new", None, waived=False)
        with OnDisk(tmp_path / "new") as f:
            assert "receipts.waived" in f.events()


class TestDamage:
    def rewritten(self, source: Path, out: Path, name: str, body: bytes | None, *, link: bool = False) -> Path:
        """The same tar with one member replaced, or left out."""
        with tarfile.open(source) as old, tarfile.open(out, "w") as new:
            for entry in old:
                content = old.extractfile(entry)
                assert content is not None
                if entry.name != name:
                    new.addfile(entry, content)
                elif body is not None:
                    entry.size = len(body)
                    new.addfile(entry, io.BytesIO(body))
            if name not in old.getnames():
                extra = tarfile.TarInfo(name)
                extra.type = tarfile.SYMTYPE if link else tarfile.REGTYPE
                extra.linkname = "/etc/passwd"
                extra.size = 0 if link else len(body or b"")
                new.addfile(extra, io.BytesIO(body or b""))
        return out

    @pytest.mark.parametrize("name", ["state.db", "federation.json", KEY_FILE, "backup.json"])
    @pytest.mark.parametrize("body", [None, b"{}"])
    def test_a_missing_or_changed_part_is_found(
        self, directory: Path, tmp_path: Path, name: str, body: bytes | None
    ) -> None:
        backup(directory, tmp_path / "b.tar")
        damaged = self.rewritten(tmp_path / "b.tar", tmp_path / "d.tar", name, body)
        with pytest.raises(StorageCorrupted):
            restore(damaged, tmp_path / "new")
        assert not list(tmp_path.glob("new*"))
        assert not list(tmp_path.glob(".new*"))

    @pytest.mark.parametrize(
        ("name", "link"), [("../evil", False), ("/evil", False), ("models/../../evil", False), ("tokens.json", True)]
    )
    def test_nothing_is_written_outside_the_directory(
        self, directory: Path, tmp_path: Path, name: str, link: bool
    ) -> None:
        backup(directory, tmp_path / "b.tar")
        damaged = self.rewritten(tmp_path / "b.tar", tmp_path / "d.tar", name, b"x", link=link)
        with pytest.raises(StorageCorrupted, match="not part of a backup"):
            restore(damaged, tmp_path / "new")
        assert not list(tmp_path.rglob("evil"))

    @pytest.mark.parametrize("share", [0.1, 0.4, 0.7])
    def test_a_truncated_file_is_found(self, directory: Path, tmp_path: Path, share: float) -> None:
        backup(directory, tmp_path / "b.tar")
        whole = (tmp_path / "b.tar").read_bytes()
        (tmp_path / "b.tar").write_bytes(whole[: int(share * len(whole))])
        with pytest.raises(StorageCorrupted):
            restore(tmp_path / "b.tar", tmp_path / "new")

    def test_an_edited_log_is_found_even_when_the_digests_fit(self, directory: Path, tmp_path: Path) -> None:
        db = sqlite3.connect(directory / "state.db")
        db.execute("DELETE FROM audit WHERE seq = 2")
        db.commit()
        db.close()
        backup(directory, tmp_path / "b.tar")
        with pytest.raises(StorageCorrupted, match="line 2 is missing"):
            restore(tmp_path / "b.tar", tmp_path / "new")


def test_nothing_is_overwritten(directory: Path, tmp_path: Path) -> None:
    backup(directory, tmp_path / "b.tar")
    with pytest.raises(UsageError, match="not overwritten"):
        backup(directory, tmp_path / "b.tar")
    with pytest.raises(UsageError, match="not empty"):
        restore(tmp_path / "b.tar", directory)
    with pytest.raises(UsageError, match="no federation"):
        backup(tmp_path, tmp_path / "c.tar")
    with pytest.raises(UsageError, match="does not exist"):
        restore(tmp_path / "c.tar", tmp_path / "new")
    with pytest.raises(UsageError, match="no receipts"):
        restore(tmp_path / "b.tar", tmp_path / "new", tmp_path)


def test_the_commands_report_their_result(directory: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, new = tmp_path / "b.tar", tmp_path / "deep" / "new"
    (directory / "tokens.json").write_text(json.dumps({}))
    assert main(["backup", "--state", str(directory), "--out", str(out)]) == Exit.OK
    assert "3 models" in capsys.readouterr().out
    assert main(["restore", "--from", str(out), "--state", str(new)]) == Exit.OK
    shown = capsys.readouterr().out
    assert "restored" in shown
    assert "--receipts" in shown
    assert (new / "tokens.json").exists()
