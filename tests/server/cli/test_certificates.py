"""`puf-server certs revoke | restore | revoked`."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.pki import Pki
from tests.running import make_state

from puf_common.config.exit_codes import Exit
from puf_common.errors import NotAuthenticated
from puf_common.network.certificates import holder_of
from puf_common.network.tls import read_certificates
from puf_server.admission.revocations import Revocations
from puf_server.cli.main import main


def test_a_name_a_key_or_a_serial_is_revoked_listed_and_restored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PUF_STATE", str(make_state(tmp_path / "state")))
    file = Pki(tmp_path / "pki").authority.client("anna").certificate
    anna = holder_of(read_certificates(file)[0])
    serving = Revocations(tmp_path / "state")
    for words, listed in (
        (["anna"], "client  anna"),
        (["--cert", str(file)], f"key  {anna.key}"),
        (["--serial", anna.serial.upper()], f"serial  {anna.serial}"),
    ):
        assert main(["certs", "revoke", *words]) == Exit.OK
        serving.refresh()
        with pytest.raises(NotAuthenticated):
            serving.require_not_revoked("anna", anna)
        capsys.readouterr()
        assert main(["certs", "revoked"]) == Exit.OK
        assert listed in capsys.readouterr().out
        assert main(["certs", "restore", *words]) == Exit.OK
        serving.refresh()
        serving.require_not_revoked("anna", anna)
    capsys.readouterr()
    assert main(["certs", "revoked"]) == Exit.OK
    assert capsys.readouterr().out == "nothing is revoked\n"
