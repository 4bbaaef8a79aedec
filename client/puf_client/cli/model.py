"""`puf-client model`: writes an initial model file, for a server without PyTorch."""

from __future__ import annotations

from puf_client.options import ModelOptions
from puf_common.config.exit_codes import Exit


def run_model(options: ModelOptions) -> Exit:
    """Builds the model, writes it as safetensors, and prints its size and fingerprint."""
    from puf_common.models.initial import initial_model
    from puf_common.models.networks import build_any
    from puf_common.tensors.model_file import save

    first = initial_model(build_any(options.model, options.model_option, options.seed), options.seed)
    manifest = first.manifest
    facts = {"model": options.model, "seed": str(options.seed), **first.metadata}
    save(options.out, manifest, first.payload, facts)
    buffers = sum(t.role == "buffer" for t in manifest.tensors)
    parameters = len(manifest.tensors) - buffers
    print(f"{options.out}: {manifest.parameters:,} parameters in {parameters} tensors, {buffers} buffers")
    print(f"fingerprint {manifest.fingerprint.hex()}")
    if first.base_digest:
        print(f"base model {first.base_digest}: its frozen parameters are not in the file")
    return Exit.OK
