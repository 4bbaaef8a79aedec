"""The nodes of a grid under the names that PUF uses, and a grid that shows only some of them."""

from __future__ import annotations

import hashlib
from base64 import b64decode, b64encode
from collections.abc import Iterable
from typing import Any

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_public_key
from flwr.serverapp import Grid


def named_nodes(grid: Grid) -> dict[int, str]:
    """Names by node id: the fingerprint of the public key, or the id where a node has no key, as in simulations."""
    return {node.node_id: name_of(node.node_id, bytes(node.public_key)) for node in grid.get_nodes()}


def name_of(node_id: int, public_key: bytes) -> str:
    return f"key-{fingerprint(public_key)}" if public_key else f"node-{node_id}"


def fingerprint(public_key: bytes) -> str:
    return hashlib.sha256(public_key).hexdigest()[:32]


def same_node(wanted: str | int, node_id: int, public_key: bytes) -> bool:
    """Whether a request means this node: by its name, its id, its public key or a fingerprint of the key."""
    text = str(wanted).strip()
    known = {name_of(node_id, public_key), str(node_id)}
    if public_key:
        known |= {public_key.hex(), fingerprint(public_key), public_key.decode("utf-8", "replace").strip()}
        known |= _ssh_forms(public_key)
        # A line of a .pub file may end with a comment.
        text = " ".join(text.split()[:2]) if text.startswith("ecdsa-") else text
    return text in known


def _ssh_forms(public_key: bytes) -> set[str]:
    """The key as `ssh-keygen` writes it, and the fingerprint that `ssh-keygen -l` shows; nothing for other bytes."""
    try:
        line = load_pem_public_key(public_key).public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()
    except (ValueError, UnsupportedAlgorithm):
        return set()
    digest = hashlib.sha256(b64decode(line.split()[1])).digest()
    return {line, f"SHA256:{b64encode(digest).decode().rstrip('=')}"}


class GridView:
    """A grid on which only the given nodes are connected. A strategy samples from them as usual."""

    def __init__(self, grid: Grid, node_ids: Iterable[int]) -> None:
        self._grid, self._shown = grid, frozenset(node_ids)

    def get_node_ids(self) -> list[int]:
        return [node for node in self._grid.get_node_ids() if node in self._shown]

    def get_nodes(self) -> list[Any]:
        return [node for node in self._grid.get_nodes() if node.node_id in self._shown]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._grid, name)
