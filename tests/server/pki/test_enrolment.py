"""Enrolment without an operator: requests in a directory are answered with certificates."""

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
def requests(tmp_path: Path) -> Path:
    (tmp_path / "requests").mkdir()
    return tmp_path / "requests"


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority.create(tmp_path / "authority", "test")


@contextmanager
def answering(authority: Authority, requests: Path) -> Iterator[None]:
    """Answers while the body runs, as `puf-server certs watch` does."""
    closed = threading.Event()

    def answer() -> None:
        while not closed.wait(0.02):
            answer_all(authority, requests)

    thread = threading.Thread(target=answer)
    thread.start()
    try:
        yield
    finally:
        closed.set()
        thread.join()


def test_the_key_stays_with_the_client_and_the_certificate_is_returned(
    authority: Authority, requests: Path, tmp_path: Path
) -> None:
    site = tmp_path / "site"
    with answering(authority, requests):
        certificate = enroll_through("clinic-7", site, requests, patience=20)
        assert holder_of(read_certificates(certificate)[0]).name == "clinic-7"
        assert (site / "ca.crt").read_bytes() == (authority.directory / "ca.crt").read_bytes()
        assert not list(requests.glob("*.key"))
        key, first = (site / "clinic-7.key").read_bytes(), certificate.read_bytes()
        # Every start of a client does this; nothing changes.
        assert enroll_through("clinic-7", site, requests, patience=20).read_bytes() == first
        # A client that lost its certificate but not its key gets another for the same key.
        certificate.unlink()
        enroll_through("clinic-7", site, requests, patience=20)
        assert (site / "clinic-7.key").read_bytes() == key
    assert not list(requests.glob("*.csr"))


def test_a_name_with_a_certificate_is_not_given_to_another_key(
    authority: Authority, requests: Path, tmp_path: Path
) -> None:
    with answering(authority, requests):
        enroll_through("clinic-7", tmp_path / "site", requests, patience=20)
        with pytest.raises(NotYours, match="another key than clinic-7"):
            enroll_through("clinic-7", tmp_path / "elsewhere", requests, patience=20)
        # The owner of the name is not affected.
        enroll_through("clinic-7", tmp_path / "site", requests, patience=20)


def test_an_invalid_request_is_refused_in_one_line(authority: Authority, requests: Path, tmp_path: Path) -> None:
    enroll("bert", tmp_path / "bert")
    (requests / "anna.csr").write_bytes((tmp_path / "bert" / "bert.csr").read_bytes())
    (requests / "cleo.csr").write_bytes(b"x" * 100_000)
    (requests / "dora.csr").write_text("hello")
    (requests / "emil.csr").symlink_to(authority.directory / "ca.key")
    (requests / "notes.txt").write_text("hello")
    assert answer_all(authority, requests) == ["anna", "cleo", "dora"]
    assert (
        requests / "anna.refused"
    ).read_text() == f"{requests}/anna.csr is for bert, not for anna; nothing was signed\n"
    assert "more than 65536 bytes" in (requests / "cleo.refused").read_text()
    assert "not a signing request" in (requests / "dora.refused").read_text()
    assert not list(requests.glob("*.crt")) or [p.name for p in requests.glob("*.crt")] == ["ca.crt"]
    assert answer_all(authority, requests) == []


def test_without_an_answer_the_client_reports_the_command(requests: Path, tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="puf-server certs watch"):
        enroll_through("anna", tmp_path / "site", requests, patience=0)
    with pytest.raises(UsageError, match="cannot write to"):
        enroll_through("bert", tmp_path / "site", tmp_path / "nowhere", patience=0)


def test_the_command_answers_requests_once(authority: Authority, requests: Path, tmp_path: Path) -> None:
    enroll("anna", tmp_path / "site")
    (requests / "anna.csr").write_bytes((tmp_path / "site" / "anna.csr").read_bytes())
    assert main(["certs", "watch", str(requests), "--dir", str(authority.directory), "--once"]) == Exit.OK
    assert holder_of(read_certificates(requests / "anna.crt")[0]).name == "anna"
    assert main(["certs", "watch", str(tmp_path / "no"), "--dir", str(authority.directory), "--once"]) == Exit.USAGE
