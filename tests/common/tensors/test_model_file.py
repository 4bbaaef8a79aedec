"""Model files: exchange with safetensors, and hostile files."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from safetensors import SafetensorError

from puf_common.errors import Mismatch, StorageCorrupted, UsageError
from puf_common.tensors.manifest import MODEL, Manifest, TensorSpec
from puf_common.tensors.model_file import MAX_HEADER, read_manifest, read_payload, save, write_header

MANIFEST = Manifest(
    (
        TensorSpec("flag", "bool", (3,), "buffer"),  # three bytes: all later tensors are unaligned
        TensorSpec("zeta.weight", "f32", (2, 3)),
        TensorSpec("empty", "f32", (0, 4)),
        TensorSpec("alpha.mean", "f32", (2,), "buffer"),
        TensorSpec("steps", "i64", (), "buffer"),
        TensorSpec("größe", "f16", (3,)),
        TensorSpec("wide", "f64", (1,)),
    )
)


def payload_of(manifest: Manifest) -> bytearray:
    payload = bytearray(manifest.nbytes(MODEL))
    for number, view in enumerate(manifest.views(payload, MODEL).values()):
        view[...] = np.arange(view.size).reshape(view.shape) + number
    return payload


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.safetensors"


def raw(path: Path, header: object, payload: bytes = b"") -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + payload)
    return path


def entry(dtype: str, shape: list[Any], *offsets: Any) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": list(offsets)}


class TestRoundTrip:
    def test_a_saved_file_is_read(self, path: Path) -> None:
        save(path, MANIFEST, payload_of(MANIFEST), {"round": "3", "note": "ä\n"})
        manifest, metadata, start = read_manifest(path)
        assert manifest == MANIFEST
        assert metadata == {"round": "3", "note": "ä\n"}
        assert read_payload(path) == payload_of(MANIFEST) == path.read_bytes()[start:]
        assert start % 8 == 0
        assert path.read_bytes()[:start] == write_header(MANIFEST, metadata)

    def test_the_library_reads_the_file(self, path: Path) -> None:
        save(path, MANIFEST, payload_of(MANIFEST), {})
        expected = MANIFEST.views(payload_of(MANIFEST), MODEL)
        read = safetensors.numpy.load_file(path)
        assert read.keys() == expected.keys()
        for name, array in read.items():
            np.testing.assert_array_equal(array, expected[name])
            assert array.dtype == expected[name].dtype

    def test_files_are_exchanged_with_torch(self, path: Path) -> None:
        torch = pytest.importorskip("safetensors.torch")
        save(path, MANIFEST, payload_of(MANIFEST), {})
        state = torch.load_file(path)
        assert state["zeta.weight"].tolist() == [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]
        torch.save_file(state, path)
        assert read_payload(path, MANIFEST) == payload_of(MANIFEST)

    def test_a_file_of_the_library_is_read(self, path: Path) -> None:
        arrays: dict[str, NDArray[Any]] = dict(MANIFEST.views(payload_of(MANIFEST), MODEL))
        safetensors.numpy.save_file(arrays, path, {"puf.buffers": '["alpha.mean"]', "by": "them"})
        manifest, metadata, _ = read_manifest(path)
        # The library sorts by alignment, then by name.
        assert [t.name for t in manifest.tensors] == [
            "steps", "wide", "alpha.mean", "empty", "zeta.weight", "größe", "flag",
        ]  # fmt: skip
        assert {t.name for t in manifest.tensors if t.role == "buffer"} == {"flag", "alpha.mean", "steps"}
        assert metadata == {"by": "them"}
        views = manifest.views(read_payload(path), MODEL)
        for name, array in arrays.items():
            np.testing.assert_array_equal(views[name], array)

    def test_a_payload_is_read_in_the_requested_order(self, path: Path) -> None:
        # A file of another program has no roles. They do not affect the order of bytes.
        safetensors.numpy.save_file(dict(MANIFEST.views(payload_of(MANIFEST), MODEL)), path)
        assert read_payload(path, MANIFEST) == payload_of(MANIFEST)

    @pytest.mark.parametrize(
        ("tensors", "message"),
        [
            (MANIFEST.tensors[:-1], "has the tensor wide, which the model does not have"),
            ((*MANIFEST.tensors, TensorSpec("more", "f32", ())), "lacks the tensor more"),
            ((*MANIFEST.tensors[:-1], TensorSpec("wide", "f32", (2,))), r"wide is f64\[1\], the model has f32\[2\]"),
        ],
    )
    def test_another_model_is_named(self, path: Path, tensors: tuple[TensorSpec, ...], message: str) -> None:
        save(path, MANIFEST, payload_of(MANIFEST), {})
        with pytest.raises(Mismatch, match=message):
            read_payload(path, Manifest(tensors))

    def test_offsets_define_the_order(self, path: Path) -> None:
        raw(path, {"b": entry("U8", [1], 1, 2), "e": entry("U8", [0], 1, 1), "a": entry("U8", [1], 0, 1)}, b"\1\2")
        assert [t.name for t in read_manifest(path)[0].tensors] == ["a", "e", "b"]
        assert read_payload(path) == b"\1\2"

    @given(st.data())
    @settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
    def test_any_manifest(self, path: Path, data: st.DataObject) -> None:
        dtypes = st.sampled_from(["f16", "f32", "f64", "i8", "i16", "i32", "i64", "u8", "bool"])
        shapes = st.lists(st.integers(0, 3), max_size=3).map(tuple)
        names = st.text(st.characters(categories=["L", "N", "P"], exclude_characters="|"), min_size=1, max_size=6)
        chosen = data.draw(st.dictionaries(names, st.tuples(dtypes, shapes, st.booleans()), min_size=1, max_size=6))
        manifest = Manifest(
            tuple(
                TensorSpec(name, dtype, shape, "buffer" if buffer or not dtype.startswith("f") else "parameter")
                for name, (dtype, shape, buffer) in chosen.items()
            )
        )
        save(path, manifest, payload_of(manifest), {})
        assert read_manifest(path)[0] == manifest
        assert read_payload(path) == payload_of(manifest)
        assert safetensors.numpy.load_file(path).keys() == chosen.keys()
        safetensors.numpy.save_file(dict(manifest.views(payload_of(manifest), MODEL)), path)
        assert read_payload(path, manifest) == payload_of(manifest)


class TestSave:
    def test_streams_chunks(self, path: Path) -> None:
        payload = payload_of(MANIFEST)

        def chunks() -> Iterator[memoryview]:
            for start in range(0, len(payload), 7):
                yield memoryview(payload)[start : start + 7]

        save(path, MANIFEST, chunks(), {})
        assert read_payload(path) == payload

    @pytest.mark.parametrize("size", [0, 3, 1000])
    def test_a_wrong_length_leaves_the_old_file_and_nothing_else(self, path: Path, size: int) -> None:
        save(path, MANIFEST, payload_of(MANIFEST), {})
        before = path.read_bytes()
        with pytest.raises(Mismatch, match="the payload has"):
            save(path, MANIFEST, bytes(size), {})
        assert path.read_bytes() == before
        assert list(path.parent.iterdir()) == [path]

    def test_a_failing_source_leaves_no_file(self, path: Path) -> None:
        def chunks() -> Iterator[bytes]:
            yield b"123"
            raise ConnectionError

        with pytest.raises(ConnectionError):
            save(path, MANIFEST, chunks(), {})
        assert list(path.parent.iterdir()) == []

    @pytest.mark.parametrize("name", ["__metadata__", "tab\there"])
    def test_names_that_the_format_does_not_allow(self, name: str) -> None:
        with pytest.raises(UsageError, match="must not be called"):
            write_header(Manifest((TensorSpec(name, "f32", ()),)), {})


ONE = entry("U8", [1], 0, 1)


class TestHostileFiles:
    @pytest.mark.parametrize(
        ("header", "payload", "message"),
        [
            (b"", b"", "not valid JSON"),
            (b"{", b"", "not valid JSON"),
            (b"\xff\xff", b"", "not valid JSON"),
            (b"[" * 100_000, b"", "not valid JSON"),
            (b'{"a":' + b"9" * 5000 + b"}", b"", "not valid JSON"),
            (b'{"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"a":3}', b"", "occurs twice"),
            ([], b"", "not a JSON object"),
            ({"a": 3}, b"", "must have dtype, shape and data_offsets"),
            ({"a": {"dtype": "U8", "shape": [1]}}, b"1", "must have dtype, shape and data_offsets"),
            ({"a": entry(3, [1], 0, 1)}, b"1", "dtype must be text"),  # type: ignore[arg-type]
            ({"a": entry("U8", [-1], 0, 1)}, b"1", "shape must be"),
            ({"a": entry("U8", [True], 0, 1)}, b"1", "shape must be"),
            ({"a": entry("U8", [1.0], 0, 1)}, b"1", "shape must be"),
            ({"a": entry("U8", [1] * 65, 0, 1)}, b"1", "shape must be"),
            ({"a": entry("U8", [2**63], 0, 1)}, b"1", "shape must be"),
            ({"a": entry("F64", [0, 2**62], 0, 0)}, b"", "shape is too large"),
            ({"a": entry("U8", [1], 0)}, b"1", "two numbers"),
            ({"a": entry("U8", [1], -1, 0)}, b"1", "two numbers"),
            ({"a": entry("U8", [1], 0, "1")}, b"1", "two numbers"),
            ({"a": entry("U8", [1], 1, 0)}, b"1", "span -1"),
            ({"a": entry("F32", [1], 0, 1)}, b"1", "needs 4 bytes"),
            ({"a": ONE, "b": ONE}, b"12", "overlaps"),
            ({"a": ONE, "b": entry("U8", [1], 2, 3)}, b"123", "gap"),
            ({"a": entry("U8", [1], 1, 2)}, b"12", "gap"),
            ({"a": ONE}, b"", "the file holds 0"),
            ({"a": ONE}, b"12", "the file holds 2"),
            ({"a": entry("U8", [9], 0, 9)}, b"1", "the file holds 1"),
            ({"a": ONE, "__metadata__": {"x": 1}}, b"1", "must map text to text"),
            ({"a": ONE, "__metadata__": []}, b"1", "must map text to text"),
            ({"a": ONE, "__metadata__": {"puf.buffers": "a"}}, b"1", "must be a JSON list"),
            ({"a": ONE, "__metadata__": {"puf.buffers": "[1]"}}, b"1", "must be a JSON list"),
            ({"a": ONE, "__metadata__": {"puf.buffers": '["b"]'}}, b"1", "names 'b'"),
            ({"\ud800": ONE}, b"1", "unprintable"),
        ],
    )
    def test_damaged(self, path: Path, header: object, payload: bytes, message: str) -> None:
        with pytest.raises(StorageCorrupted, match=message):
            read_payload(raw(path, header, payload))

    @pytest.mark.parametrize(
        ("header", "payload", "message"),
        [
            ({"a": entry("F8_E4M3", [2], 0, 2)}, b"12", "a: type 'F8_E4M3' cannot be sent; use one of F16, BF16, F32"),
            ({}, b"", "model.safetensors: the model has no tensors"),
            ({"a|b": ONE}, b"1", "must not contain"),
        ],
    )
    def test_valid_but_unusable_files(self, path: Path, header: object, payload: bytes, message: str) -> None:
        with pytest.raises(UsageError, match=message):
            read_manifest(raw(path, header, payload))

    def test_lengths(self, path: Path) -> None:
        path.write_bytes(b"1234")
        with pytest.raises(StorageCorrupted, match="too short"):
            read_manifest(path)
        path.write_bytes((MAX_HEADER + 1).to_bytes(8, "little"))
        with pytest.raises(StorageCorrupted, match="not a safetensors file"):
            read_manifest(path)
        path.write_bytes((90_000_000).to_bytes(8, "little") + b"{}")
        with pytest.raises(StorageCorrupted, match="cut off"):
            read_manifest(path)

    def test_pickles_are_named_and_never_opened(self, path: Path) -> None:
        path.write_bytes(b"PK\x03\x04\x00\x00\x08\x08" + b"x" * 100)
        with pytest.raises(UsageError, match=r"safetensors\.torch\.save_file"):
            read_manifest(path)

    def test_a_header_that_only_begins_like_a_pickle_is_read(self, path: Path) -> None:
        text = json.dumps({"a": ONE}).encode().ljust(0x0280)
        assert read_payload(raw(path, text, b"1")) == b"1"

    def test_missing_files(self, path: Path) -> None:
        with pytest.raises(UsageError, match="No such file"):
            read_manifest(path)
        with pytest.raises(UsageError, match="Is a directory"):
            read_payload(path.parent)

    @given(st.binary(max_size=300))
    @settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
    def test_any_bytes(self, path: Path, content: bytes) -> None:
        path.write_bytes(content)
        accepted(path)

    @given(st.data())
    @settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
    def test_any_damage_to_a_good_file(self, path: Path, data: st.DataObject) -> None:
        save(path, MANIFEST, payload_of(MANIFEST), {"k": "v"})
        content = bytearray(path.read_bytes())
        for _ in range(data.draw(st.integers(1, 4))):
            at = data.draw(st.integers(0, len(content)))
            cut = data.draw(st.integers(0, 3))
            content[at : at + cut] = data.draw(st.binary(max_size=3))
        path.write_bytes(content)
        accepted(path)

    @given(st.data())
    @settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
    def test_any_header(self, path: Path, data: st.DataObject) -> None:
        numbers = st.integers(-1, 9) | st.sampled_from([2**31, 2**63, 2**64, True, None, 1.5, "1"])
        tensor = st.fixed_dictionaries(
            {
                "dtype": st.sampled_from(["F32", "U8", "I64", "BOOL", "BF16", "f32", "", None]),
                "shape": st.lists(numbers, max_size=3),
                "data_offsets": st.lists(numbers, min_size=1, max_size=3),
            }
        )
        header = data.draw(
            st.dictionaries(st.sampled_from(["a", "b", "c", "__metadata__"]), tensor | st.none(), max_size=3)
        )
        raw(path, header, bytes(data.draw(st.integers(0, 12))))
        accepted(path)


def accepted(path: Path) -> None:
    """Either one of two errors, or the library reads the file with the same content."""
    try:
        manifest, _, _ = read_manifest(path)
        payload = read_payload(path)
    except (StorageCorrupted, UsageError):
        return
    views = manifest.views(payload, MODEL)
    try:
        theirs = safetensors.numpy.load_file(path)
    except SafetensorError as error:
        pytest.fail(f"the library refuses what was accepted: {error}")
    assert theirs.keys() == views.keys()
    for name, array in theirs.items():
        assert array.tobytes() == views[name].tobytes()
