"""The update of one assignment: difference to the base model, cut to the requested tensors, scaled, encoded, digested."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from puf_client.session.rounding import Rounding
from puf_common.errors import InvalidUpdate
from puf_common.receipts.gap import DoseReport
from puf_common.tensors.chunks import Payload
from puf_common.tensors.digests import DigestKind, digest_of, to_pb
from puf_common.tensors.encodings import compact, expand, expanded
from puf_common.tensors.finite import all_finite
from puf_common.tensors.manifest import UPDATE, Manifest, TensorSpec
from puf_common.tensors.scaling import scale_update
from puf_common.v1 import federation_pb2 as pb
from puf_common.v1 import tensors_pb2, tickets_pb2


class HasStateDict(Protocol):
    """A torch module, or another object that names its tensors in the same way."""

    def state_dict(self) -> Mapping[str, Any]: ...


TrainingResult: TypeAlias = "HasStateDict | Mapping[str, Any] | Payload"


@dataclass(frozen=True)
class LocalUpdate:
    """An update before scaling, and what its header states about it."""

    payload: Payload
    samples: int
    train_loss: float
    samples_processed: int
    # Positions of the samples that were trained on, if the session knows the data.
    indices: NDArray[np.intp] | None = None
    dose: DoseReport | None = None
    # Digest of the base model; empty if it is not known.
    base_digest: bytes = b""

    def is_of(self, indices: NDArray[np.intp] | None) -> bool:
        """Whether it was trained on these samples."""
        if self.indices is None or indices is None:
            return self.indices is indices
        return np.array_equal(self.indices, indices)


def difference(manifest: Manifest, base: Payload, result: TrainingResult) -> Payload:
    """Returns the update of a trained model: differences of parameters, values of buffers.

    Bytes are used unchanged. They are copied only if the caller could still change them.
    """
    if isinstance(result, (bytes, bytearray, memoryview)):
        if len(result) != manifest.nbytes(UPDATE):
            raise InvalidUpdate(f"the update has {len(result)} bytes, the manifest requires {manifest.nbytes(UPDATE)}")
        return _finite(manifest, result if memoryview(result).readonly else bytearray(result))
    if not isinstance(result, Mapping) and hasattr(result, "named_parameters"):
        # In a torch module, the state names tied parameters twice. They are sent once.
        from puf_common.models.module_tensors import update_of

        return _finite(manifest, update_of(result, manifest, base))  # type: ignore[arg-type]
    arrays = result if isinstance(result, Mapping) else result.state_dict()
    _require_names(manifest, arrays)
    before = manifest.values(base)
    payload = bytearray(manifest.nbytes(UPDATE))
    for spec, target in zip(manifest.tensors, manifest.views(payload, UPDATE).values(), strict=True):
        new = _array(spec, arrays[spec.name])
        if spec.role == "parameter":
            old = before[spec.name]
            np.subtract(new.astype(target.dtype, copy=False), old.astype(target.dtype, copy=False), out=target)
        else:
            np.copyto(target, new, casting="same_kind")
    return _finite(manifest, payload)


def restricted(manifest: Manifest, names: Sequence[str]) -> Manifest:
    """Returns the manifest of the named tensors, in the order of the model; the whole manifest if no name is given."""
    if not names:
        return manifest
    unknown = sorted(set(names) - {t.name for t in manifest.tensors})
    if unknown:
        raise InvalidUpdate(f"the server requests tensor {unknown[0]}, which the model lacks", tensor=unknown[0])
    return Manifest(tuple(t for t in manifest.tensors if t.name in set(names)))


def cut(manifest: Manifest, payload: Payload, layout: Manifest) -> Payload:
    """Returns the bytes of the tensors in `layout`."""
    if layout is manifest:
        return payload
    wanted = {t.name for t in layout.tensors}
    return bytearray().join(
        payload[s.offset : s.offset + s.nbytes] for s in manifest.ranges(UPDATE) if s.spec.name in wanted
    )


def upload_of(
    work: pb.TrainWork,
    update: LocalUpdate,
    manifest: Manifest,
    *,
    encoding: tensors_pb2.Encoding,
    digest_kind: DigestKind,
    rounding: Rounding | None = None,
) -> tuple[pb.UpdateHeader, Payload]:
    """Returns the header and the bytes to send: scaled if the client has to scale, and encoded.

    `rounding` is for 8-bit numbers: the seed, and the error of the last update, which this update corrects. The digest is over
    the decoded bytes, because they are what the server sums.
    """
    dose = update.dose
    full = work.scale * dose.kappa if dose else work.scale
    scale = 1.0 if work.flip == tickets_pb2.FLIP_SERVER else full
    layout = restricted(manifest, work.outputs)
    payload = update.payload
    if scale != 1.0:
        payload = bytearray(payload)
        scale_update(layout, payload, scale)
    sent = payload
    # The decoded bytes, in blocks.
    summed: Iterable[Payload] = [payload]
    if encoding != tensors_pb2.ENCODING_UNSPECIFIED:
        name = tensors_pb2.Encoding.Name(encoding).removeprefix("ENCODING_").lower()
        rounding = rounding or Rounding()
        wanted = rounding.corrected(layout, payload)
        sent = compact(layout, wanted, name, rounding.seed)
        summed = expanded(layout, sent, name)
        if rounding.errors is not None:
            whole = expand(layout, sent, name)
            rounding.keep_error(layout, wanted, whole)
            summed = [whole]
    header = pb.UpdateHeader(
        key=work.key,
        base_version=work.base_version,
        samples=update.samples,
        applied_scale=scale,
        byte_length=layout.nbytes(UPDATE),
        digest=digest_of(summed, digest_kind),
        digest_kind=to_pb(digest_kind),
        manifest_fingerprint=manifest.fingerprint,
        train_loss=update.train_loss,
        samples_processed=update.samples_processed,
        encoding=encoding,
        base_digest=update.base_digest,
        dose=pb.DoseReport(kappa=dose.kappa, gap=tickets_pb2.Gap(**asdict(dose.gap)), hold=dose.hold) if dose else None,
    )
    return header, sent


def _require_names(manifest: Manifest, arrays: Mapping[str, Any]) -> None:
    expected = {t.name for t in manifest.tensors}
    missing, unknown = sorted(expected - arrays.keys()), sorted(arrays.keys() - expected)
    for names, text in ((missing, "lacks"), (unknown, "has, unlike the federation's model,")):
        if names:
            shown = ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
            raise InvalidUpdate(f"the trained model {text} {shown}", tensor=names[0])


def _array(spec: TensorSpec, value: Any) -> NDArray[Any]:
    """Returns a numpy array. A torch tensor is recognised by `detach`, so that torch need not be imported."""
    if hasattr(value, "detach"):
        # numpy has no bfloat16.
        value = (value.detach().float() if str(value.dtype) == "torch.bfloat16" else value.detach()).cpu().numpy()
    array = np.asarray(value)
    if array.shape != spec.shape:
        raise InvalidUpdate(
            f"tensor {spec.name} has shape {list(array.shape)}, the federation's has {list(spec.shape)}",
            tensor=spec.name,
        )
    return array


def _finite(manifest: Manifest, payload: Payload) -> Payload:
    kinds = {tensor.dtype for tensor in manifest.ranges(UPDATE)}
    # Most models have one type, and all their tensors can be checked at once.
    if len(kinds) == 1 and manifest.tensors[0].floating and all_finite(np.frombuffer(payload, kinds.pop())):
        return payload
    for spec, tensor in zip(manifest.tensors, manifest.views(payload, UPDATE).values(), strict=True):
        if spec.floating and not all_finite(tensor):
            raise InvalidUpdate(f"tensor {spec.name} is not finite: training diverged", tensor=spec.name)
    return payload
