"""`puf-server dashboard`: every wrong combination of settings is refused with one clear line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.pki import Pki
from tests.running import make_state

from puf_common.config.exit_codes import Exit
from puf_common.errors import UsageError
from puf_server.cli.dashboard import DashboardSettings, _look_up, _token
from puf_server.cli.main import main


@pytest.fixture
def pki(tmp_path: Path) -> Pki:
    return Pki(tmp_path / "pki")


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["dashboard", *words]) == Exit.USAGE
    return capsys.readouterr().err


@pytest.mark.parametrize("listen", ["0.0.0.0:0", "[::]:0", "192.0.2.7:7302", "dashboard.example:7302"])
def test_another_address_than_loopback_needs_tls_and_a_token(
    listen: str, pki: Pki, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tls = ["--web-cert", str(pki.server.certificate), "--web-key", str(pki.server.key)]
    token = ["--web-token-file", str(tmp_path / "token")]
    for words in ([], tls, token):
        assert "--web-cert, --web-key and --web-token-file" in refused(capsys, "--web", listen, *words)


def test_an_address_without_a_name_needs_one(pki: Pki, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--web-cert", str(pki.server.certificate), "--web-key", str(pki.server.key)]
    words += ["--web-token-file", str(tmp_path / "token"), "--web", "0.0.0.0:0"]
    assert "--allow-host HOST" in refused(capsys, *words)


def test_certificate_and_key_go_together(pki: Pki, capsys: pytest.CaptureFixture[str]) -> None:
    assert "go together" in refused(capsys, "--web-cert", str(pki.server.certificate))
    other = pki.authority.client("anna")
    wrong = refused(capsys, "--web-cert", str(pki.server.certificate), "--web-key", str(other.key))
    assert "is not the key of the certificate" in wrong


def test_only_a_viewers_certificate_is_used(pki: Pki, capsys: pytest.CaptureFixture[str]) -> None:
    for issued in (pki.authority.operator("ada"), pki.authority.client("anna")):
        words = ["--tls-ca", str(pki.ca), "--tls-cert", str(issued.certificate), "--tls-key", str(issued.key)]
        assert "puf-server certs viewer" in refused(capsys, *words)
    assert "puf-server certs viewer" in refused(capsys, "--tls-ca", str(pki.ca))
    viewer = pki.authority.viewer("wall")
    settings = DashboardSettings(
        tls_ca=pki.ca, tls_cert=viewer.certificate, tls_key=viewer.key, operator="server.example:7301"
    )
    target, tls = _look_up(settings)()
    assert target == "server.example:7301"
    assert tls is not None


def test_the_state_directory_names_the_server(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "holds no federation" in refused(capsys, "--state", str(tmp_path / "nothing"))
    state = make_state(tmp_path / "state")
    with pytest.raises(UsageError, match="no server serves"):
        _look_up(DashboardSettings(state=state))()


def test_a_token_is_made_once_and_must_be_private_and_long(tmp_path: Path) -> None:
    file = tmp_path / "token"
    made = _token(file)
    assert len(made) > 40
    assert _token(file) == made
    assert file.stat().st_mode & 0o777 == 0o600
    file.chmod(0o644)
    with pytest.raises(UsageError, match="chmod 600"):
        _token(file)
    file.chmod(0o600)
    file.write_text("short")
    with pytest.raises(UsageError, match="too short"):
        _token(file)


def test_without_the_extra_the_command_says_what_to_install() -> None:
    program = "import sys; sys.modules['starlette'] = None; from puf_server.cli.main import main; sys.exit(main(['dashboard']))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == Exit.USAGE
    assert "pip install 'puf-fl[dashboard]'" in done.stderr
