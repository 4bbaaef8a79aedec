"""Certificates as the commands make them."""

from __future__ import annotations

import stat
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.x509.oid import ExtendedKeyUsageOID
from tests.pki import Pki
from tests.running import make_state

from puf_client.cli.main import main as client_main
from puf_common.config.exit_codes import Exit
from puf_common.errors import NotAuthenticated, UsageError
from puf_common.network.certificates import holder_of, new_key, server_names, signing_request, subject
from puf_common.network.tls import read_certificates, read_key
from puf_server.admission.tokens import Tokens
from puf_server.cli.main import main
from puf_server.pki.authority import Authority, ephemeral_access

Run = Callable[..., str]


@pytest.fixture(autouse=True)
def _no_settings_from_outside(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("PUF_STATE", raising=False)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs a command that must succeed; returns its output."""

    def run(*words: str) -> str:
        command = client_main if words[0] == "enroll" else main
        assert command([str(w) for w in words]) == Exit.OK, capsys.readouterr().err
        return capsys.readouterr().out

    return run


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs a command that must fail as a usage error; returns its one line."""

    def run(*words: str) -> str:
        command = client_main if words[0] == "enroll" else main
        assert command([str(w) for w in words]) == Exit.USAGE
        shown = capsys.readouterr().err
        assert shown.count("\n") == 1
        return shown

    return run


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def days_left(certificate: x509.Certificate) -> float:
    return (certificate.not_valid_after_utc - datetime.now(UTC)) / timedelta(days=1)


def purposes(certificate: x509.Certificate) -> list[x509.ObjectIdentifier]:
    return list(certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value)


def test_an_authority_and_everything_it_signs(run: Run, tmp_path: Path) -> None:
    run("certs", "init", "--dir", "pki")
    run("certs", "server", "--dir", "pki", "--name", "fed.example.org", "--name", "10.0.0.5", "--name", "::1")
    run("certs", "client", "clinic-7", "--dir", "pki")
    run("certs", "operator", "--dir", "pki")
    pki = tmp_path / "pki"
    assert [mode(pki / d) for d in (".", "clients", "operators")] == [0o700] * 3
    keys = sorted(pki.rglob("*.key"))
    assert len(keys) == 4
    assert {mode(key) for key in keys} == {0o600}
    for key in keys:
        assert isinstance(k := read_key(key), ec.EllipticCurvePrivateKey)
        assert isinstance(k.curve, ec.SECP256R1)
    authority = read_certificates(pki / "ca.crt")[0]
    assert days_left(authority) == pytest.approx(3650, abs=1)
    server = read_certificates(pki / "server.crt")[0]
    assert server_names(server) == ["fed.example.org", "10.0.0.5", "::1"]
    assert purposes(server) == [ExtendedKeyUsageOID.SERVER_AUTH]
    client = read_certificates(pki / "clients" / "clinic-7.crt")[0]
    assert (holder_of(client).role, holder_of(client).name) == ("client", "clinic-7")
    assert purposes(client) == [ExtendedKeyUsageOID.CLIENT_AUTH]
    operator = holder_of(read_certificates(pki / "operators" / "operator.crt")[0])
    assert operator.role == "operator"
    for leaf in (server, client):
        leaf.verify_directly_issued_by(authority)
        assert days_left(leaf) == pytest.approx(365, abs=1)
        assert leaf.extensions.get_extension_for_class(x509.BasicConstraints).value.ca is False


def test_lifetimes_are_chosen_and_end_with_the_authority(run: Run, refused: Run, tmp_path: Path) -> None:
    run("certs", "init", "--dir", "pki", "--days", "20")
    run("certs", "client", "a", "--dir", "pki", "--days", "7")
    run("certs", "client", "b", "--dir", "pki", "--days", "400")
    left = [days_left(read_certificates(tmp_path / "pki" / "clients" / f"{n}.crt")[0]) for n in "ab"]
    assert left == pytest.approx([7, 20], abs=0.1)
    assert "--days" in refused("certs", "client", "c", "--dir", "pki", "--days", "0")


def test_nothing_is_overwritten(run: Run, refused: Run, tmp_path: Path) -> None:
    run("certs", "init", "--dir", "pki")
    run("certs", "server", "--dir", "pki", "--name", "localhost")
    run("certs", "client", "a", "--dir", "pki")
    before = {p: p.read_bytes() for p in (tmp_path / "pki").rglob("*.*")}
    assert "not overwritten" in refused("certs", "init", "--dir", "pki")
    assert "exists already" in refused("certs", "server", "--dir", "pki", "--name", "localhost")
    assert "exists already" in refused("certs", "client", "a", "--dir", "pki")
    assert {p: p.read_bytes() for p in (tmp_path / "pki").rglob("*.*")} == before


def test_renewing_keeps_name_and_key(run: Run, refused: Run, tmp_path: Path) -> None:
    run("certs", "init", "--dir", "pki")
    run("certs", "server", "--dir", "pki", "--name", "localhost", "--name", "127.0.0.1")
    run("certs", "client", "a", "--dir", "pki")
    for words, file in ((("client", "a"), "clients/a"), (("server",), "server")):
        old = read_certificates(tmp_path / "pki" / f"{file}.crt")[0]
        key = (tmp_path / "pki" / f"{file}.key").read_bytes()
        run("certs", *words, "--dir", "pki", "--renew", "--days", "500")
        new = read_certificates(tmp_path / "pki" / f"{file}.crt")[0]
        assert new.serial_number != old.serial_number
        assert new.public_key() == old.public_key()
        assert server_names(new) == server_names(old)
        assert days_left(new) == pytest.approx(500, abs=1)
        assert (tmp_path / "pki" / f"{file}.key").read_bytes() == key
    assert "cannot read" in refused("certs", "client", "b", "--dir", "pki", "--renew")


def test_a_clients_own_key_stays_with_the_client(run: Run, refused: Run, tmp_path: Path) -> None:
    run("certs", "init", "--dir", "pki")
    shown = run("enroll", "--name", "clinic-7", "--dir", "site")
    assert "puf-server certs sign" in shown
    assert mode(tmp_path / "site") == 0o700
    assert mode(tmp_path / "site" / "clinic-7.key") == 0o600
    assert "not overwritten" in refused("enroll", "--name", "clinic-7", "--dir", "site")
    run("certs", "sign", "site/clinic-7.csr", "--dir", "pki", "--name", "clinic-7")
    signed = read_certificates(tmp_path / "pki" / "clients" / "clinic-7.crt")[0]
    key = read_key(tmp_path / "site" / "clinic-7.key")
    assert signed.public_key() == key.public_key()
    assert holder_of(signed).name == "clinic-7"
    assert not (tmp_path / "pki" / "clients" / "clinic-7.key").exists()
    # A second signature for the same name needs --renew.
    assert "exists already" in refused("certs", "sign", "site/clinic-7.csr", "--dir", "pki")
    run("enroll", "--name", "clinic-7", "--dir", "site", "--renew")
    run("certs", "sign", "site/clinic-7.csr", "--dir", "pki", "--renew")
    assert read_certificates(tmp_path / "pki" / "clients" / "clinic-7.crt")[0].public_key() == key.public_key()
    # A new key for an old name needs --new-key.
    run("enroll", "--name", "clinic-7", "--dir", "elsewhere")
    theirs = ("certs", "sign", "elsewhere/clinic-7.csr", "--dir", "pki", "--renew")
    assert "another key" in refused(*theirs)
    assert read_certificates(tmp_path / "pki" / "clients" / "clinic-7.crt")[0].public_key() == key.public_key()
    run(*theirs, "--new-key")


def test_a_signed_request_gets_a_clients_certificate_only(tmp_path: Path) -> None:
    authority = Authority.create(tmp_path / "pki", "test")
    file = tmp_path / "r.csr"

    def ask(key: ec.EllipticCurvePrivateKey, *names: str, ca: bool = False, common: str = "eve") -> None:
        builder = x509.CertificateSigningRequestBuilder().subject_name(subject(common))
        if names:
            uris = x509.SubjectAlternativeName([x509.UniformResourceIdentifier(n) for n in names])
            builder = builder.add_extension(uris, False)
        if ca:
            builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), True)
        file.write_bytes(builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))

    ask(new_key(), "puf:operator:eve")
    with pytest.raises(UsageError, match="only clients"):
        authority.sign(file)
    ask(new_key(), "puf:client:eve", "puf:client:anna")
    with pytest.raises(UsageError, match="more than one"):
        authority.sign(file)
    ask(new_key(), common="../ca")
    with pytest.raises(UsageError, match="names no client"):
        authority.sign(file)
    ask(new_key(), "puf:client:eve")
    with pytest.raises(UsageError, match="is for eve, not for anna"):
        authority.sign(file, name="anna")
    file.write_bytes(signing_request(new_key(), "eve")[:-60] + b"AAAA\n-----END CERTIFICATE REQUEST-----\n")
    with pytest.raises(UsageError):
        authority.sign(file)
    weak = x509.CertificateSigningRequestBuilder().subject_name(subject("eve"))
    signed = weak.sign(ed25519.Ed25519PrivateKey.generate(), None)
    file.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
    with pytest.raises(UsageError, match="unknown kind"):
        authority.sign(file)
    ask(new_key(), ca=True)
    made = read_certificates(authority.sign(file).certificate)[0]
    assert made.extensions.get_extension_for_class(x509.BasicConstraints).value.ca is False
    assert purposes(made) == [ExtendedKeyUsageOID.CLIENT_AUTH]


@pytest.mark.parametrize("name", ["../x", "", "a/b", "-a", "a b", "ä", "a" * 65])
def test_names_that_are_paths_are_refused(name: str, tmp_path: Path) -> None:
    authority = Authority.create(tmp_path / "pki", "test")
    for make in (authority.client, authority.operator):
        with pytest.raises(UsageError, match="cannot be a name"):
            make(name)
    with pytest.raises(UsageError, match="cannot be a name"):
        Tokens(tmp_path).add(name, 1)


@pytest.mark.parametrize("name", ["host:7300", "http://x", "a b", ""])
def test_server_names_are_hosts_or_addresses(name: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="neither a host name"):
        Authority.create(tmp_path / "pki", "test").server([name])


def test_commands_report_what_is_missing(refused: Run, tmp_path: Path) -> None:
    assert "certs init" in refused("certs", "client", "a", "--dir", "nowhere")
    assert "--state" in refused("certs", "revoke", "a")
    assert "holds no federation" in refused("certs", "revoke", "a", "--state", "nowhere")
    make_state(tmp_path / "state")
    assert "say which one" in refused("certs", "revoke", "--state", "state")
    assert "hexadecimal" in refused("certs", "revoke", "--state", "state", "--serial", "xyz")


def test_the_name_in_a_foreign_certificate(tmp_path: Path) -> None:
    pki = Pki(tmp_path / "pki")
    holder = pki.foreign("hospital.example.org").holder()
    assert holder is not None
    assert (holder.role, holder.name) == ("client", "hospital.example.org")
    with pytest.raises(UsageError, match="names no client"):
        pki.foreign("Hospital of Example").holder()
    holder.require_current()
    with pytest.raises(NotAuthenticated, match="expired"):
        holder.require_current(datetime.now(UTC) + timedelta(days=2))
    with pytest.raises(NotAuthenticated, match="not valid before"):
        holder.require_current(datetime.now(UTC) - timedelta(days=2))


def test_the_certificates_of_a_server_process_are_new_every_time() -> None:
    (root, local), (other, _) = ephemeral_access(), ephemeral_access()
    assert root != other
    assert {role: holder_of(x509.load_pem_x509_certificate(shown)).role for role, (shown, _) in local.items()} == {
        "operator": "operator",
        "viewer": "viewer",
    }
    assert len({key for _, key in local.values()}) == 2


def test_one_authority_makes_several_server_certificates(tmp_path: Path) -> None:
    pki = Pki(tmp_path / "pki")
    issued = pki.authority.server(["dashboard.example"], file="dashboard")
    assert issued.certificate == pki.directory / "dashboard.crt"
    assert server_names(read_certificates(issued.certificate)[0]) == ["dashboard.example"]
    assert server_names(read_certificates(pki.server.certificate)[0]) == ["localhost", "127.0.0.1"]
    renewed = pki.authority.server([], file="dashboard", renew=True)
    assert server_names(read_certificates(renewed.certificate)[0]) == ["dashboard.example"]
    with pytest.raises(UsageError):
        pki.authority.server(["x"], file="../outside")
