"""Enrolment without a person in between: requests handed in at a directory, certificates that come back."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from puf_client.cli.enroll import enroll, enroll_through
from puf_common.config.exit_codes import Exit
from puf_common.errors import NotYours, Unavailable, UsageError
from puf_common.network.certificates import holder_of
from puf_common.network.tls import read_certificates
from puf_server.cli.main import main
from puf_server.pki.authority import Authority
from puf_server.pki.enrolment import answer_all


@pytest.fixture
def desk(tmp_path: Path) -> Path:
    (tmp_path / "desk").mkdir()
    return tmp_path / "desk"


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority.create(tmp_path / "authority", "test")


@contextmanager
def open_desk(authority: Authority, desk: Path) -> Iterator[None]:
    """Answers while the body runs, as `puf-server certs watch` does."""
    closed = threading.Event()

    def answer() -> None:
        while not closed.wait(0.02):
            answer_all(authority, desk)

    thread = threading.Thread(target=answer)
    thread.start()
    try:
        yield
    finally:
        closed.set()
        thread.join()


def test_the_key_stays_and_the_certificate_comes(authority: Authority, desk: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    with open_desk(authority, desk):
        certificate = enroll_through("clinic-7", site, desk, patience=20)
        assert holder_of(read_certificates(certificate)[0]).name == "clinic-7"
        assert (site / "ca.crt").read_bytes() == (authority.directory / "ca.crt").read_bytes()
        assert not list(desk.glob("*.key"))
        key, first = (site / "clinic-7.key").read_bytes(), certificate.read_bytes()
        # Every start begins like this; nothing changes.
        assert enroll_through("clinic-7", site, desk, patience=20).read_bytes() == first
        # One that lost its certificate, and not its key, gets another for the same key.
        certificate.unlink()
        enroll_through("clinic-7", site, desk, patience=20)
        assert (site / "clinic-7.key").read_bytes() == key
    assert not list(desk.glob("*.csr"))


def test_a_name_that_is_taken_is_not_given_to_another_key(authority: Authority, desk: Path, tmp_path: Path) -> None:
    with open_desk(authority, desk):
        enroll_through("clinic-7", tmp_path / "site", desk, patience=20)
        with pytest.raises(NotYours, match="another key than clinic-7 has"):
            enroll_through("clinic-7", tmp_path / "elsewhere", desk, patience=20)
        # Its owner is not disturbed by that.
        enroll_through("clinic-7", tmp_path / "site", desk, patience=20)


def test_what_is_no_request_is_refused_in_one_line(authority: Authority, desk: Path, tmp_path: Path) -> None:
    enroll("bert", tmp_path / "bert")
    (desk / "anna.csr").write_bytes((tmp_path / "bert" / "bert.csr").read_bytes())
    (desk / "cleo.csr").write_bytes(b"x" * 100_000)
    (desk / "dora.csr").write_text("hello")
    (desk / "emil.csr").symlink_to(authority.directory / "ca.key")
    (desk / "notes.txt").write_text("hello")
    assert answer_all(authority, desk) == ["anna", "cleo", "dora"]
    assert (desk / "anna.refused").read_text() == f"{desk}/anna.csr asks for bert, not for anna: nothing was signed\n"
    assert "too large" in (desk / "cleo.refused").read_text()
    assert "no signing request" in (desk / "dora.refused").read_text()
    assert not list(desk.glob("*.crt")) or [p.name for p in desk.glob("*.crt")] == ["ca.crt"]
    assert answer_all(authority, desk) == []


def test_nobody_at_the_desk(desk: Path, tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="puf-server certs watch"):
        enroll_through("anna", tmp_path / "site", desk, patience=0)
    with pytest.raises(UsageError, match="cannot write to"):
        enroll_through("bert", tmp_path / "site", tmp_path / "nowhere", patience=0)


def test_the_command(authority: Authority, desk: Path, tmp_path: Path) -> None:
    enroll("anna", tmp_path / "site")
    (desk / "anna.csr").write_bytes((tmp_path / "site" / "anna.csr").read_bytes())
    assert main(["certs", "watch", str(desk), "--dir", str(authority.directory), "--once"]) == Exit.OK
    assert holder_of(read_certificates(desk / "anna.crt")[0]).name == "anna"
    assert main(["certs", "watch", str(tmp_path / "no"), "--dir", str(authority.directory), "--once"]) == Exit.USAGE
