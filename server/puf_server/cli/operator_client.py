"""A blocking client of puf.v1.Operator, for the command line and for programs."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import grpc

from puf_common.errors import NotAuthenticated, PufError, StorageCorrupted, TransferCorrupted, UsageError
from puf_common.network.addresses import check_target
from puf_common.network.status import channel_options, error_from
from puf_common.network.tls import ClientTls, refusal
from puf_common.tensors.chunks import Assembler
from puf_common.tensors.manifest import MODEL, Manifest
from puf_common.tensors.model_file import BASE_KEY, BASE_SEED_KEY, save
from puf_common.v1 import operator_pb2 as op
from puf_common.v1 import operator_pb2_grpc as rpc

_DEADLINE = 10.0
_EXPORT_DEADLINE = 3600.0
_RETRY_SECONDS = 0.1
R = TypeVar("R")


class OperatorClient:
    """Calls the operator port of a running server. Failures are PufErrors."""

    def __init__(self, target: str, tls: ClientTls | None = None, *, start_seconds: float = 0.0) -> None:
        """Waits up to `start_seconds` for a server that is still starting."""
        self._give_up_at = time.monotonic() + start_seconds
        # Returns the current address and credentials; None if they were given.
        self._look_up: Callable[[], tuple[str, ClientTls | None]] | None = None
        self._connect(target, tls)

    def _connect(self, target: str, tls: ClientTls | None) -> None:
        self._target = check_target(target, "the operator's address")
        self._tls = tls
        options = channel_options(target)
        self._channel = tls.channel(target, options) if tls else grpc.insecure_channel(target, options=options)
        self._stub = rpc.OperatorStub(self._channel)

    @classmethod
    def of_state(cls, directory: Path, target: str = "", *, start_seconds: float = 0.0) -> OperatorClient:
        """A client of the server that serves this directory, for accounts that can read it."""
        from puf_server.admission.access_file import OperatorAccess

        def look_up() -> tuple[str, ClientTls | None]:
            access = OperatorAccess.read(directory)
            return target or access.address, access.tls()

        OperatorAccess.read(directory, start_seconds=start_seconds)
        client = cls(*look_up(), start_seconds=start_seconds)
        client._look_up = look_up
        return client

    def __enter__(self) -> OperatorClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._channel.close()

    def _call(self, method: Callable[[], Callable[..., R]], request: Any) -> R:
        while True:
            try:
                return method()(request, timeout=_DEADLINE)
            except grpc.RpcError as error:
                if error.code() is not grpc.StatusCode.UNAVAILABLE or time.monotonic() >= self._give_up_at:
                    raise self._failed(error) from None
                time.sleep(_RETRY_SECONDS)
                self._reconnect()

    def _reconnect(self) -> None:
        """Uses the new address and certificate of a restarted server. A killed server leaves its old file behind."""
        if self._look_up is None:
            return
        with suppress(UsageError, StorageCorrupted):
            if (found := self._look_up()) != (self._target, self._tls):
                self._channel.close()
                self._connect(*found)

    def _failed(self, error: grpc.RpcError) -> PufError:
        why = refusal(error.details() or "", self._target, tls=self._tls is not None)
        if error.code() is not grpc.StatusCode.UNAVAILABLE or why is None:
            return error_from(error, self._target)
        if self._tls is None:
            return NotAuthenticated(
                f"the operator port {self._target} needs TLS: give --state DIR (the directory that is served), or "
                "--tls-ca, --tls-cert and --tls-key with an operator's certificate"
            )
        return NotAuthenticated(why.sentence)

    @staticmethod
    def _pages(page: Callable[[int], Sequence[R]]) -> list[R]:
        """All entries of a list that may be too long for one message."""
        found: list[R] = []
        while more := page(len(found)):
            found += more
        return found

    def status(self) -> op.StatusReply:
        return self._call(lambda: self._stub.Status, op.StatusRequest())

    def clients(self) -> list[op.ClientInfo]:
        return self._pages(
            lambda at: self._call(lambda: self._stub.ListClients, op.ListClientsRequest(offset=at)).clients
        )

    def rounds(self, limit: int = 20) -> list[op.RoundInfo]:
        """The newest rounds, the open one first."""
        found: list[op.RoundInfo] = []
        while len(found) < limit:
            request = op.ListRoundsRequest(limit=limit - len(found), before=found[-1].number if found else 0)
            if not (more := self._call(lambda: self._stub.ListRounds, request).rounds):
                break
            found += more
        return found

    def tickets(self) -> list[Any]:
        return self._pages(
            lambda at: self._call(lambda: self._stub.ListTickets, op.ListTicketsRequest(offset=at)).tickets
        )

    def models(self) -> list[op.ModelInfo]:
        return self._pages(lambda at: self._call(lambda: self._stub.ListModels, op.ListModelsRequest(offset=at)).models)

    def pause(self) -> None:
        self._call(lambda: self._stub.Pause, op.PauseRequest())

    def resume(self) -> None:
        self._call(lambda: self._stub.Resume, op.ResumeRequest())

    def extend(self, rounds: int) -> int:
        return self._call(lambda: self._stub.Extend, op.ExtendRequest(rounds=rounds)).rounds_planned

    def stop(self) -> None:
        self._call(lambda: self._stub.Stop, op.StopRequest())

    def readmit(self, client: str) -> op.ClientInfo:
        return self._call(lambda: self._stub.Readmit, op.ReadmitRequest(client=client)).client

    def health(self) -> str:
        """The status of the standard health service: SERVING from the end of recovery until the server stops."""
        from grpc_health.v1 import health_pb2, health_pb2_grpc

        request = health_pb2.HealthCheckRequest(service="puf.v1.Federation")
        status = self._call(lambda: health_pb2_grpc.HealthStub(self._channel).Check, request).status
        return str(health_pb2.HealthCheckResponse.ServingStatus.Name(status))

    def release_shard(self, client: str) -> int:
        return self._call(lambda: self._stub.ReleaseShard, op.ReleaseShardRequest(client=client)).shard

    def approve(self, *, client: str = "", ticket: str = "") -> None:
        """Approves a client or a ticket that is on hold."""
        self._call(
            lambda: self._stub.Allow, op.AllowRequest(client=client) if client else op.AllowRequest(ticket_id=ticket)
        )

    def release(self) -> None:
        self._call(lambda: self._stub.Release, op.ReleaseRequest())

    def rollback(self) -> int:
        """Starts a rollback; returns the model version that is installed again."""
        return self._call(lambda: self._stub.Rollback, op.RollbackRequest()).version

    def forget(self, client: str, reference: str = "", received_at: float = 0.0) -> op.ForgetReply:
        request = op.ForgetRequest(client=client, reference=reference, received_at=received_at)
        return self._call(lambda: self._stub.Forget, request)

    def receipt(self, ticket_id: str) -> bytes:
        return self._call(lambda: self._stub.IssueReceipt, op.IssueReceiptRequest(ticket_id=ticket_id)).receipt

    def export(self, path: Path, version: int | None = None, *, unready: bool = False) -> op.ExportHeader:
        """Writes a verified model as a safetensors file. On failure no file is left."""
        request = op.ExportModelRequest(allow_unready=unready)
        if version is not None:
            request.version = version
        try:
            frames = iter(self._stub.ExportModel(request, timeout=_EXPORT_DEADLINE))
            header = next(frames).header
            manifest = Manifest.from_pb(header.manifest)
            if header.model.byte_length != manifest.nbytes(MODEL):
                raise TransferCorrupted("the header of the export and its manifest state different lengths")
            assembler = Assembler(header.model.byte_length, header.model.digest)
            for frame in frames:
                assembler.add(frame.chunk)
        except grpc.RpcError as error:
            raise self._failed(error) from None
        except StopIteration:
            raise TransferCorrupted("the export has no header") from None
        facts = {
            "version": str(header.model.version),
            "round": str(header.model.round),
            "status": header.status,
            "digest": header.model.digest.hex(),
        }
        if header.base_digest:
            facts |= {BASE_KEY: header.base_digest.hex(), BASE_SEED_KEY: str(header.base_seed)}
        save(path, manifest, assembler.finish(), facts)
        return header
