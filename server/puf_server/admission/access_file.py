"""The files that give programs on the server's machine access to the operator port.

Every server process writes `DIR/operator.json` for commands and `DIR/viewer.json` for the dashboard, readable by their
owner alone. They contain the address of the operator port and, under TLS, a certificate that only this process accepts.
Where several processes serve a federation, all accept that of `DIR/servers.json`, which the first one writes. An
account that can read the state directory can operate the server. Another machine needs an operator's certificate
(`puf-server certs operator`), or a viewer's (`puf-server certs viewer`).
"""

from __future__ import annotations

import json
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from puf_common.errors import StorageCorrupted, UsageError
from puf_common.files.private import create_once, write_over
from puf_common.network.certificates import Role
from puf_common.network.tls import ClientTls
from puf_server.pki.authority import EphemeralAccess, ephemeral_access

_POLL_SECONDS = 0.1
_SHARED = "servers.json"


@dataclass(frozen=True)
class OperatorAccess:
    """Address and credentials of the operator port; the last three are empty without TLS."""

    address: str
    server_certificate: str = ""
    certificate: str = ""
    key: str = ""

    def write(self, directory: Path, role: Role = "operator") -> None:
        write_over(_file(directory, role), json.dumps(vars(self), indent=1).encode())

    @staticmethod
    def remove(directory: Path) -> None:
        _file(directory, "operator").unlink(missing_ok=True)
        _file(directory, "viewer").unlink(missing_ok=True)

    @classmethod
    def read(cls, directory: Path, role: Role = "operator", *, start_seconds: float = 0.0) -> OperatorAccess:
        """The content of the file. Waits up to `start_seconds` for a server that is still starting to write it."""
        path = _file(directory, role)
        until = time.monotonic() + start_seconds
        try:
            while not path.exists() and (directory / "federation.json").exists() and time.monotonic() < until:
                time.sleep(_POLL_SECONDS)
            return cls(**json.loads(path.read_bytes()))
        except FileNotFoundError:
            raise UsageError(f"no server serves {directory} now (it has no {path.name})") from None
        except PermissionError:
            raise UsageError(f"only its owner may read {path}: use the account that runs the server") from None
        except OSError as error:
            raise UsageError(f"cannot read {path}: {error.strerror}") from None
        except (ValueError, TypeError):
            raise StorageCorrupted(f"{path} is damaged; restart the server", file=path) from None

    def tls(self) -> ClientTls | None:
        """The TLS configuration of a command; None without TLS."""
        if not self.certificate:
            return None
        return ClientTls.pinned(Path(self.server_certificate), self.certificate.encode(), self.key.encode())


def _file(directory: Path, role: Role) -> Path:
    return directory / f"{role}.json"


def shared_access(directory: Path, *, anew: bool) -> EphemeralAccess:
    """The access that all processes of a federation accept. `anew`: no other process serves it."""
    path = directory / _SHARED
    if anew:
        path.unlink(missing_ok=True)
    with suppress(FileExistsError):
        if not path.exists():
            root, made = ephemeral_access()
            roles = {role: [shown.decode(), key.decode()] for role, (shown, key) in made.items()}
            create_once(path, json.dumps({"root": root.decode(), "roles": roles}, indent=1).encode())
    try:
        stored = json.loads(path.read_bytes())
        found = {role: (shown.encode(), key.encode()) for role, (shown, key) in stored["roles"].items()}
        return stored["root"].encode(), found
    except (ValueError, KeyError, TypeError, AttributeError):
        raise StorageCorrupted(f"{path} is damaged; stop all servers and start them again", file=path) from None
