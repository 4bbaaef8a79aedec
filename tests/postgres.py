"""A real PostgreSQL for tests: it does not sync its files, and accepts TLS."""

from __future__ import annotations

import shutil
from pathlib import Path
from urllib.parse import quote

from puf_lab.federations.postgres import ROLE, programs
from puf_lab.federations.postgres import Postgres as Cluster
from tests.pki import Pki

__all__ = ["Postgres", "programs"]


class Postgres(Cluster):
    def __init__(self, bin_directory: Path) -> None:
        super().__init__(bin_directory, {"fsync": "off"})

    def _more_settings(self) -> dict[str, object]:
        """Settings for TLS with a certificate of the authority in `self.ca`."""
        pki = Pki(self._directory / "pki")
        self.ca = pki.ca
        assert pki.server.key is not None
        settings: dict[str, object] = {"ssl": "on"}
        for name, made in (("ssl_cert_file", pki.server.certificate), ("ssl_key_file", pki.server.key)):
            copy = self._data / made.name
            shutil.copyfile(made, copy)
            copy.chmod(0o600)
            self._give(copy)
            settings[name] = copy
        return settings

    def tls_address(self, ca: Path) -> str:
        """The address of a new schema over TCP. The client checks the certificate with `ca`."""
        tls = f"sslmode=verify-full&sslrootcert={quote(str(ca), safe='')}"
        return f"postgresql://{ROLE}@localhost:{self.port}/puf?{tls}&{self.new_schema()}"
