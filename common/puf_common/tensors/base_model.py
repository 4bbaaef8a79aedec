"""The base model: the frozen parameters, which stay at the clients. Its digest states which ones they are."""

from __future__ import annotations

from puf_common.errors import Mismatch


def require_base(theirs: bytes, ours: bytes, whose: str, *, seed: int) -> None:
    """Raises Mismatch unless the digest of a model's frozen parameters is the federation's. Both are empty if none is frozen."""
    if theirs == ours:
        return
    if not ours:
        what = "has frozen parameters, and the federation's model has none: set requires_grad=True for all of them"
    elif not theirs:
        what = (
            f"has no frozen parameters, and the federation has the base model {ours.hex()[:16]}: "
            "set requires_grad=False for every parameter that is not trained"
        )
    else:
        what = (
            f"is built on another base model: its frozen parameters have the digest {theirs.hex()[:16]}, the federation's "
            f"{ours.hex()[:16]}; load the operator's checkpoint with the same number types, and build random frozen "
            f"parameters with the seed {seed}"
        )
    raise Mismatch(f"{whose} {what}", theirs=theirs.hex(), ours=ours.hex())
