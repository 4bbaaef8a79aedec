"""The initial model of a federation: the tensors that travel, and the digest of the frozen ones, which do not.

It is made from a torch module, or read from a file that was made elsewhere. Reading needs no torch.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from puf_common.errors import StorageCorrupted
from puf_common.tensors.digests import DIGEST_BYTES
from puf_common.tensors.manifest import Manifest
from puf_common.tensors.model_file import BASE_KEY, BASE_SEED_KEY, read_manifest, read_payload

if TYPE_CHECKING:
    from torch import nn


class InitialModel(NamedTuple):
    """Manifest and bytes of the tensors that travel. `base_digest` is hex, and empty if no parameter is frozen."""

    manifest: Manifest
    payload: bytearray
    base_digest: str = ""
    # The seed that built the model. Clients build their frozen tensors with it.
    base_seed: int = 0

    @property
    def metadata(self) -> dict[str, str]:
        """What a model file states about the base model."""
        if not self.base_digest:
            return {}
        return {BASE_KEY: self.base_digest, BASE_SEED_KEY: str(self.base_seed)}


def initial_model(model: nn.Module, seed: int) -> InitialModel:
    """The initial model that a module is, built with this seed."""
    from puf_common.models.module_tensors import base_digest, manifest_of, payload_of

    manifest = manifest_of(model)
    base = base_digest(model).hex()
    return InitialModel(manifest, payload_of(model, manifest), base, seed if base else 0)


def read_initial_model(path: Path) -> InitialModel:
    """The initial model in a safetensors file. A file that states no base model has all tensors."""
    manifest, metadata, _ = read_manifest(path)
    base, seed = metadata.get(BASE_KEY, ""), metadata.get(BASE_SEED_KEY, "0")
    hexadecimal = len(base) == 2 * DIGEST_BYTES and set(base) <= set("0123456789abcdef")
    if (base and not hexadecimal) or not (seed.isdecimal() and seed.isascii() and int(seed) < 2**63):
        raise StorageCorrupted(f"{path.name}: {BASE_KEY} must be a SHA-256 in hex, and {BASE_SEED_KEY} a whole number")
    return InitialModel(manifest, read_payload(path), base, int(seed))
