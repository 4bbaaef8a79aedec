"""The contract in `protos/` carries the same bytes as version 0.1, and its unused field numbers are reserved."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from google.protobuf import descriptor_pb2
from google.protobuf.descriptor import Descriptor, FieldDescriptor, FileDescriptor

from puf_common.errors import PufError
from puf_common.names import NAME
from puf_common.network.status import IDENTITY_KEY, ROLE_KEY, TOKEN_KEY
from puf_common.v1 import federation_pb2, operator_pb2, tensors_pb2, tickets_pb2

FILES = (tensors_pb2, tickets_pb2, federation_pb2, operator_pb2)
# Numbers, types and labels of version 0.1, made by `wire_format` from its stubs. Field names do not travel.
RELEASED = Path(__file__).parent.parent / "fixtures/contract_0_1.json"


def wire_format(files: list[FileDescriptor]) -> dict[str, Any]:
    """All that decides how a message, an enum or a call is written to the wire."""
    messages = [nested for file in files for top in file.message_types_by_name.values() for nested in with_nested(top)]
    enums = [e for file in files for e in file.enum_types_by_name.values()]
    enums += [e for message in messages for e in message.enum_types]
    return {
        "messages": {m.full_name: {str(f.number): wire_type(f) for f in m.fields} for m in messages},
        "enums": {e.full_name: {str(v.number): v.name for v in e.values} for e in enums},
        "calls": {
            call.full_name: [
                ("stream " * call.client_streaming) + call.input_type.full_name,
                ("stream " * call.server_streaming) + call.output_type.full_name,
            ]
            for file in files
            for service in file.services_by_name.values()
            for call in service.methods
        },
    }


def with_nested(message: Descriptor) -> list[Descriptor]:
    return [message, *(inner for nested in message.nested_types for inner in with_nested(nested))]


def wire_type(field: FieldDescriptor) -> str:
    """For example "repeated 4" or "single 11 puf.v1.Position in frame"."""
    referenced = field.message_type or field.enum_type
    return " ".join(
        filter(
            None,
            (
                "repeated" if field.is_repeated else "single",
                str(field.type),
                referenced.full_name if referenced else "",
                f"in {field.containing_oneof.name}" if field.containing_oneof else "",
            ),
        )
    )


def test_the_contract_is_wire_compatible_with_version_0_1() -> None:
    released = json.loads(RELEASED.read_text())
    now = wire_format([file.DESCRIPTOR for file in FILES])
    for kind, entries in released.items():
        for name, content in entries.items():
            if isinstance(content, dict):
                assert now[kind][name].items() >= content.items(), name
            else:
                assert now[kind][name] == content, name


def test_a_changed_number_is_found() -> None:
    released = json.loads(RELEASED.read_text())
    now = wire_format([file.DESCRIPTOR for file in FILES])
    position = now["messages"]["puf.v1.Position"]
    position["4"] = position.pop("3")
    assert not position.items() >= released["messages"]["puf.v1.Position"].items()


def test_every_gap_in_the_field_numbers_is_reserved() -> None:
    for file in FILES:
        proto = descriptor_pb2.FileDescriptorProto()
        file.DESCRIPTOR.CopyToProto(proto)
        for message in proto.message_type:
            used = {field.number for field in message.field}
            kept = {number for r in message.reserved_range for number in range(r.start, r.end)}
            gaps = set(range(1, max(used, default=0))) - used
            assert gaps == kept, f"{message.name}: reserve {sorted(gaps)}"


def errors(root: type[PufError]) -> list[type[PufError]]:
    return [root, *(leaf for child in root.__subclasses__() for leaf in errors(child))]


ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/other-languages.md").read_text()


def test_the_page_for_other_languages_lists_every_reason_with_its_status() -> None:
    table = PAGE[PAGE.index("## Errors") : PAGE.index("gRPC itself")]
    listed = re.findall(r"^\| `(\w+)` \| `(\w+)` \| ", table, re.MULTILINE)
    assert sorted(listed) == sorted({(error.status, error.reason) for error in errors(PufError)})


def test_the_page_for_other_languages_states_metadata_names_and_signed_bytes() -> None:
    for key in (IDENTITY_KEY, TOKEN_KEY, ROLE_KEY, "grpc-status-details-bin"):
        assert f"metadata key `{key}`" in PAGE
    assert f"`{NAME.pattern}`" in PAGE
    public = Ed25519PrivateKey.from_private_bytes(bytes(32)).public_key()
    raw = public.public_bytes(Encoding.Raw, PublicFormat.Raw)
    der = public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    assert f"`{der.removesuffix(raw).hex()}`" in PAGE
    assert '`("(?:[^"\\\\]|\\\\.)*")|[ \\n]+`' in PAGE
    results = {entry["result"] for entry in json.loads((ROOT / "protos/vectors/vectors.json").read_text())["files"]}
    assert set(re.findall(r"^\| `([\w ]+)` \| (?:Steps|A step|Intact)", PAGE, re.MULTILINE)) == results


def test_the_contract_lists_every_reason_with_its_status() -> None:
    """The table in the header of federation.proto: a status is stated once, for all reasons below it."""
    text = (ROOT / "protos/puf/v1/federation.proto").read_text()
    listed: set[tuple[str, str]] = set()
    status = ""
    for line in text[text.index("// ERRORS") : text.index("// gRPC itself")].splitlines():
        if found := re.match(r"//   (?:([A-Z_]+) +| {21,})([A-Z_]{3,}) ", line):
            status = found[1] or status
            listed.add((status, found[2]))
    assert listed == {(error.status, error.reason) for error in errors(PufError)}
