"""A client that uses only the contract as server reflection gives it, without our stubs and message classes."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from tests.running import make_state, metadata, running, tiny_payload


class Foreign:
    """Builds every message and call from server reflection."""

    def __init__(self, port: int) -> None:
        self.channel = grpc.insecure_channel(f"127.0.0.1:{port}")
        self.pool = descriptor_pool.DescriptorPool()
        stub = reflection_pb2_grpc.ServerReflectionStub(self.channel)
        ask = reflection_pb2.ServerReflectionRequest(file_containing_symbol="puf.v1.Federation")
        files: dict[str, descriptor_pb2.FileDescriptorProto] = {}
        for reply in stub.ServerReflectionInfo(iter([ask])):
            for raw in reply.file_descriptor_response.file_descriptor_proto:
                file = descriptor_pb2.FileDescriptorProto.FromString(raw)
                files[file.name] = file
        loaded: set[str] = set()
        while len(loaded) < len(files):
            for file in files.values():
                if file.name not in loaded and loaded.issuperset(file.dependency):
                    self.pool.Add(file)
                    loaded.add(file.name)
        self.service = self.pool.FindServiceByName("puf.v1.Federation")

    def make(self, message: str, **fields: Any) -> Any:
        return message_factory.GetMessageClass(self.pool.FindMessageTypeByName(f"puf.v1.{message}"))(**fields)

    def call(self, method: str, request: Any, name: str) -> Any:
        described = self.service.methods_by_name[method]
        reply = message_factory.GetMessageClass(described.output_type)
        kind = f"{'stream' if described.client_streaming else 'unary'}_{'stream' if described.server_streaming else 'unary'}"
        rpc = getattr(self.channel, kind)(
            f"/puf.v1.Federation/{method}",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=reply.FromString,
        )
        return rpc(request, metadata=metadata(name), timeout=20)


def train_by_contract(client: Foreign, name: str, session: str) -> bytes:
    """One round: wait, fetch, verify, add 0.5 to every float32, submit the difference in chunks of 7 bytes."""
    work = client.call(
        "WaitForWork", client.make("WaitForWorkRequest", session=session, timeout_seconds=20), name
    ).train
    frames = client.call("FetchModel", client.make("FetchModelRequest", version=work.base_version), name)
    header = next(frames).header
    model = b"".join(frame.chunk.data for frame in frames)
    assert len(model) == header.byte_length
    assert hashlib.sha256(model).digest() == header.digest
    # 9 parameters as differences, 3 buffers as values, one integer as a value.
    update = struct.pack("<9f3fq", *[0.5] * 9, *[4.0] * 3, 11)

    def frames_up() -> Iterator[Any]:
        yield client.make(
            "SubmitUpdateRequest",
            header=client.make(
                "UpdateHeader",
                key=work.key,
                base_version=work.base_version,
                samples=10,
                applied_scale=work.scale,
                byte_length=len(update),
                digest=hashlib.sha256(update).digest(),
                manifest_fingerprint=header.manifest_fingerprint,
            ),
        )
        for start in range(0, len(update), 7):
            chunk = client.make("Chunk", offset=start, data=update[start : start + 7])
            yield client.make("SubmitUpdateRequest", chunk=chunk)

    client.call("SubmitUpdate", frames_up(), name)
    return model


def test_a_client_written_from_the_contract_alone_can_join_fetch_verify_and_submit(tmp_path: Path) -> None:
    with running(make_state(tmp_path / "state")) as server:
        client = Foreign(server.port)
        about = client.call("Describe", client.make("DescribeRequest"), "anna")
        lines = "".join(
            f"{t.name}|{about.manifest.DESCRIPTOR.file.pool.FindEnumTypeByName('puf.v1.DType').values_by_number[t.dtype].name}"
            f"|{','.join(map(str, t.shape))}|{'parameter' if t.role == 1 else 'buffer'}\n"
            for t in about.manifest.tensors
        ).replace("DTYPE_", "")
        lines = "\n".join(_lower_dtype(line) for line in lines.splitlines()) + "\n"
        assert hashlib.sha256(lines.encode()).digest() == about.manifest.fingerprint
        sessions = {}
        for name in ("anna", "bert"):
            join = client.make(
                "JoinRequest",
                instance=f"i-{name}",
                samples=10,
                manifest_fingerprint=about.manifest.fingerprint,
                recipe_fingerprint=about.recipe.fingerprint,
            )
            sessions[name] = client.call("Join", join, name).session
        first = [train_by_contract(client, name, sessions[name]) for name in ("anna", "bert")]
        assert first == [bytes(tiny_payload())] * 2
        second = train_by_contract(client, "anna", sessions["anna"])
        values = struct.unpack("<9f3fq", second)
        assert values == (*[v + 0.5 for v in struct.unpack("<9f", first[0][:36])], 4.0, 4.0, 4.0, 11)
        client.channel.close()


def _lower_dtype(line: str) -> str:
    name, dtype, rest = line.split("|", 2)
    return f"{name}|{dtype.lower()}|{rest}"
