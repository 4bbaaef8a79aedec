"""From a trained model to the bytes and the header that the contract requires."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from puf_client.session.update import LocalUpdate, cut, difference, restricted, upload_of
from puf_common.errors import InvalidUpdate
from puf_common.tensors.digests import digest
from puf_common.tensors.encodings import compact, expand
from puf_common.tensors.manifest import UPDATE
from puf_common.v1 import federation_pb2 as pb
from puf_common.v1 import tensors_pb2, tickets_pb2
from tests.client.session.arrays import MANIFEST, model, payload_of


class Module:
    def __init__(self, arrays: dict[str, NDArray[Any]]) -> None:
        self.arrays = arrays

    def state_dict(self) -> dict[str, NDArray[Any]]:
        return self.arrays


def test_parameters_are_sent_as_differences_and_buffers_as_values() -> None:
    old, new = model(1), model(2)
    update = MANIFEST.views(difference(MANIFEST, payload_of(old), new), UPDATE)
    np.testing.assert_array_equal(update["w"], new["w"] - old["w"])
    np.testing.assert_array_equal(update["half"], new["half"].astype(np.float32) - old["half"].astype(np.float32))
    assert update["half"].dtype == np.float32
    np.testing.assert_array_equal(update["mean"], new["mean"])
    assert update["steps"] == 2


def test_a_module_and_its_weights_give_the_same_bytes() -> None:
    base, new = payload_of(model(1)), model(2)
    assert difference(MANIFEST, base, Module(new)) == difference(MANIFEST, base, new)


def test_torch_tensors_give_the_same_bytes() -> None:
    torch = pytest.importorskip("torch")
    base, new = payload_of(model(1)), model(2)
    tensors = {name: torch.from_numpy(array).requires_grad_(name == "w") for name, array in new.items()}
    assert difference(MANIFEST, base, tensors) == difference(MANIFEST, base, new)


def test_bytes_are_used_unchanged() -> None:
    ready = difference(MANIFEST, payload_of(model(1)), model(2))
    again = difference(MANIFEST, b"", bytes(ready))
    assert again == ready
    with pytest.raises(InvalidUpdate, match="bytes"):
        difference(MANIFEST, b"", bytes(ready)[:-1])


@pytest.mark.parametrize(
    ("change", "names"),
    [
        (lambda m: m.pop("half"), "half"),
        (lambda m: m.update(extra=np.zeros(1)), "extra"),
        (lambda m: m.update(w=np.zeros((3, 2), np.float32)), "w"),
        (lambda m: m.update(w=np.full((2, 3), np.nan, np.float32)), "w"),
        (lambda m: m.update(mean=np.array([1, np.inf], np.float32)), "mean"),
    ],
)
def test_a_mismatch_names_the_tensor(change: Any, names: str) -> None:
    new = model(2)
    change(new)
    with pytest.raises(InvalidUpdate) as caught:
        difference(MANIFEST, payload_of(model(1)), new)
    assert caught.value.facts["tensor"] == names
    assert names in caught.value.message


def test_tied_parameters_of_a_torch_module_are_sent_once() -> None:
    torch = pytest.importorskip("torch")
    from puf_common.models.module_tensors import manifest_of, payload_of

    net = torch.nn.Sequential(torch.nn.Linear(3, 3, bias=False), torch.nn.Linear(3, 3, bias=False))
    net[1].weight = net[0].weight
    manifest = manifest_of(net)
    base = payload_of(net, manifest)
    with torch.no_grad():
        net[0].weight += 1
    update = manifest.views(difference(manifest, base, net), UPDATE)
    assert np.allclose(update["0.weight"].astype(np.float64), 1.0)
    net[0].weight.data[0, 0] = float("nan")
    with pytest.raises(InvalidUpdate, match="diverged"):
        difference(manifest, base, net)


def test_only_the_requested_tensors_are_sent_in_the_order_of_the_model() -> None:
    new = model(2)
    whole = difference(MANIFEST, payload_of(model(1)), new)
    layout = restricted(MANIFEST, ["mean", "w"])
    assert [t.name for t in layout.tensors] == ["w", "mean"]
    part = layout.views(cut(MANIFEST, whole, layout), UPDATE)
    for name, view in part.items():
        np.testing.assert_array_equal(view, MANIFEST.views(whole, UPDATE)[name])
    assert restricted(MANIFEST, []) is MANIFEST
    with pytest.raises(InvalidUpdate, match="requests tensor x"):
        restricted(MANIFEST, ["x"])


UPDATE_OF_5 = LocalUpdate(difference(MANIFEST, payload_of(model(1)), model(2)), 5, 0.25, 10)


def work(**fields: Any) -> pb.TrainWork:
    return pb.TrainWork(key=pb.WorkKey(round=4, part=pb.PART_MAIN), base_version=3, **fields)


def test_the_client_scales_parameters_and_leaves_buffers() -> None:
    header, sent = upload_of(
        work(scale=-2.0), UPDATE_OF_5, MANIFEST, encoding=tensors_pb2.ENCODING_UNSPECIFIED, digest_kind="sha256"
    )
    before, after = MANIFEST.views(UPDATE_OF_5.payload, UPDATE), MANIFEST.views(sent, UPDATE)
    np.testing.assert_array_equal(after["w"], -2 * before["w"])
    np.testing.assert_array_equal(after["mean"], before["mean"])
    assert (header.applied_scale, header.samples, header.samples_processed) == (-2.0, 5, 10)
    assert (header.key.round, header.base_version, header.train_loss) == (4, 3, 0.25)
    assert header.digest == digest(sent, "sha256")
    assert header.manifest_fingerprint == MANIFEST.fingerprint


def test_the_update_stays_unscaled_if_the_server_negates() -> None:
    negated = work(scale=-2.0, flip=tickets_pb2.FLIP_SERVER)
    header, sent = upload_of(
        negated, UPDATE_OF_5, MANIFEST, encoding=tensors_pb2.ENCODING_UNSPECIFIED, digest_kind="blake3"
    )
    assert sent is UPDATE_OF_5.payload
    assert header.applied_scale == 1.0
    assert header.digest == digest(sent, "blake3")


def test_the_digest_of_an_encoded_update_is_over_the_decoded_bytes() -> None:
    header, sent = upload_of(
        work(scale=1.0), UPDATE_OF_5, MANIFEST, encoding=tensors_pb2.ENCODING_BF16, digest_kind="sha256"
    )
    assert sent == compact(MANIFEST, UPDATE_OF_5.payload, "bf16")
    decoded = expand(MANIFEST, sent, "bf16")
    assert header.digest == digest(decoded, "sha256")
    assert header.byte_length == len(decoded) > len(sent)
    assert header.encoding == tensors_pb2.ENCODING_BF16


def test_a_part_of_the_tensors_is_scaled_with_its_own_layout() -> None:
    layout = restricted(MANIFEST, ["mean", "w"])
    part = LocalUpdate(cut(MANIFEST, UPDATE_OF_5.payload, layout), 5, 0.0, 5)
    _, sent = upload_of(
        work(scale=3.0, outputs=["mean", "w"]),
        part,
        MANIFEST,
        encoding=tensors_pb2.ENCODING_UNSPECIFIED,
        digest_kind="sha256",
    )
    np.testing.assert_array_equal(layout.views(sent, UPDATE)["w"], 3 * layout.views(part.payload, UPDATE)["w"])
