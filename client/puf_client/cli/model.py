"""`puf-client model`: writes an initial model file, for a server without PyTorch."""

from __future__ import annotations

from puf_client.options import ModelOptions
from puf_common.config.exit_codes import Exit


def run_model(options: ModelOptions) -> Exit:
    """Builds the model, writes it as safetensors, and prints its size and fingerprint."""
    from puf_common.models.module_tensors import manifest_of, payload_of
    from puf_common.models.networks import build_any
    from puf_common.tensors.model_file import save

    model = build_any(options.model, options.model_option, options.seed)
    manifest = manifest_of(model)
    save(options.out, manifest, payload_of(model, manifest), {"model": options.model, "seed": str(options.seed)})
    buffers = sum(t.role == "buffer" for t in manifest.tensors)
    parameters = len(manifest.tensors) - buffers
    print(f"{options.out}: {manifest.parameters:,} parameters in {parameters} tensors, {buffers} buffers")
    print(f"fingerprint {manifest.fingerprint.hex()}")
    return Exit.OK
