from puf_common.v1 import federation_pb2 as _federation_pb2
from puf_common.v1 import tensors_pb2 as _tensors_pb2
from puf_common.v1 import tickets_pb2 as _tickets_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class StatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class StatusReply(_message.Message):
    __slots__ = ("federation_id", "title", "position", "rounds_planned", "waiting_for", "clients_active", "clients_alive", "tickets_open", "round", "score", "score_version", "bytes_received", "bytes_sent", "uptime_seconds", "server_version", "rounds_trained", "tickets_failed", "tickets_overdue", "trouble", "server_key", "download_rate", "upload_rate")
    FEDERATION_ID_FIELD_NUMBER: _ClassVar[int]
    TITLE_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    ROUNDS_PLANNED_FIELD_NUMBER: _ClassVar[int]
    WAITING_FOR_FIELD_NUMBER: _ClassVar[int]
    CLIENTS_ACTIVE_FIELD_NUMBER: _ClassVar[int]
    CLIENTS_ALIVE_FIELD_NUMBER: _ClassVar[int]
    TICKETS_OPEN_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    SCORE_VERSION_FIELD_NUMBER: _ClassVar[int]
    BYTES_RECEIVED_FIELD_NUMBER: _ClassVar[int]
    BYTES_SENT_FIELD_NUMBER: _ClassVar[int]
    UPTIME_SECONDS_FIELD_NUMBER: _ClassVar[int]
    SERVER_VERSION_FIELD_NUMBER: _ClassVar[int]
    ROUNDS_TRAINED_FIELD_NUMBER: _ClassVar[int]
    TICKETS_FAILED_FIELD_NUMBER: _ClassVar[int]
    TICKETS_OVERDUE_FIELD_NUMBER: _ClassVar[int]
    TROUBLE_FIELD_NUMBER: _ClassVar[int]
    SERVER_KEY_FIELD_NUMBER: _ClassVar[int]
    DOWNLOAD_RATE_FIELD_NUMBER: _ClassVar[int]
    UPLOAD_RATE_FIELD_NUMBER: _ClassVar[int]
    federation_id: str
    title: str
    position: _federation_pb2.Position
    rounds_planned: int
    waiting_for: str
    clients_active: int
    clients_alive: int
    tickets_open: int
    round: RoundInfo
    score: _tickets_pb2.Score
    score_version: int
    bytes_received: int
    bytes_sent: int
    uptime_seconds: float
    server_version: str
    rounds_trained: int
    tickets_failed: int
    tickets_overdue: int
    trouble: str
    server_key: bytes
    download_rate: float
    upload_rate: float
    def __init__(self, federation_id: _Optional[str] = ..., title: _Optional[str] = ..., position: _Optional[_Union[_federation_pb2.Position, _Mapping]] = ..., rounds_planned: _Optional[int] = ..., waiting_for: _Optional[str] = ..., clients_active: _Optional[int] = ..., clients_alive: _Optional[int] = ..., tickets_open: _Optional[int] = ..., round: _Optional[_Union[RoundInfo, _Mapping]] = ..., score: _Optional[_Union[_tickets_pb2.Score, _Mapping]] = ..., score_version: _Optional[int] = ..., bytes_received: _Optional[int] = ..., bytes_sent: _Optional[int] = ..., uptime_seconds: _Optional[float] = ..., server_version: _Optional[str] = ..., rounds_trained: _Optional[int] = ..., tickets_failed: _Optional[int] = ..., tickets_overdue: _Optional[int] = ..., trouble: _Optional[str] = ..., server_key: _Optional[bytes] = ..., download_rate: _Optional[float] = ..., upload_rate: _Optional[float] = ...) -> None: ...

class ClientInfo(_message.Message):
    __slots__ = ("name", "membership", "status", "alive", "samples", "holdout_samples", "first_round", "last_round", "device", "activity", "silent_seconds", "shard", "download_rate", "upload_rate", "held")
    NAME_FIELD_NUMBER: _ClassVar[int]
    MEMBERSHIP_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    ALIVE_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    HOLDOUT_SAMPLES_FIELD_NUMBER: _ClassVar[int]
    FIRST_ROUND_FIELD_NUMBER: _ClassVar[int]
    LAST_ROUND_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    ACTIVITY_FIELD_NUMBER: _ClassVar[int]
    SILENT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    SHARD_FIELD_NUMBER: _ClassVar[int]
    DOWNLOAD_RATE_FIELD_NUMBER: _ClassVar[int]
    UPLOAD_RATE_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    name: str
    membership: int
    status: str
    alive: bool
    samples: int
    holdout_samples: int
    first_round: int
    last_round: int
    device: str
    activity: str
    silent_seconds: float
    shard: int
    download_rate: float
    upload_rate: float
    held: str
    def __init__(self, name: _Optional[str] = ..., membership: _Optional[int] = ..., status: _Optional[str] = ..., alive: _Optional[bool] = ..., samples: _Optional[int] = ..., holdout_samples: _Optional[int] = ..., first_round: _Optional[int] = ..., last_round: _Optional[int] = ..., device: _Optional[str] = ..., activity: _Optional[str] = ..., silent_seconds: _Optional[float] = ..., shard: _Optional[int] = ..., download_rate: _Optional[float] = ..., upload_rate: _Optional[float] = ..., held: _Optional[str] = ...) -> None: ...

class ListClientsRequest(_message.Message):
    __slots__ = ("offset", "limit", "name", "status")
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    offset: int
    limit: int
    name: str
    status: str
    def __init__(self, offset: _Optional[int] = ..., limit: _Optional[int] = ..., name: _Optional[str] = ..., status: _Optional[str] = ...) -> None: ...

class ListClientsReply(_message.Message):
    __slots__ = ("clients", "total")
    CLIENTS_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    clients: _containers.RepeatedCompositeFieldContainer[ClientInfo]
    total: int
    def __init__(self, clients: _Optional[_Iterable[_Union[ClientInfo, _Mapping]]] = ..., total: _Optional[int] = ...) -> None: ...

class RoundInfo(_message.Message):
    __slots__ = ("number", "attempt", "kind", "phase", "base_version", "expected", "received", "missing", "opened_at", "committed_at", "bytes_down", "bytes_up", "samples_processed", "train_loss", "tickets", "closed_at", "version", "score")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    BASE_VERSION_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_FIELD_NUMBER: _ClassVar[int]
    MISSING_FIELD_NUMBER: _ClassVar[int]
    OPENED_AT_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_AT_FIELD_NUMBER: _ClassVar[int]
    BYTES_DOWN_FIELD_NUMBER: _ClassVar[int]
    BYTES_UP_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_PROCESSED_FIELD_NUMBER: _ClassVar[int]
    TRAIN_LOSS_FIELD_NUMBER: _ClassVar[int]
    TICKETS_FIELD_NUMBER: _ClassVar[int]
    CLOSED_AT_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    number: int
    attempt: int
    kind: str
    phase: str
    base_version: int
    expected: int
    received: int
    missing: _containers.RepeatedScalarFieldContainer[str]
    opened_at: float
    committed_at: float
    bytes_down: int
    bytes_up: int
    samples_processed: int
    train_loss: float
    tickets: _containers.RepeatedScalarFieldContainer[str]
    closed_at: float
    version: int
    score: _tickets_pb2.Score
    def __init__(self, number: _Optional[int] = ..., attempt: _Optional[int] = ..., kind: _Optional[str] = ..., phase: _Optional[str] = ..., base_version: _Optional[int] = ..., expected: _Optional[int] = ..., received: _Optional[int] = ..., missing: _Optional[_Iterable[str]] = ..., opened_at: _Optional[float] = ..., committed_at: _Optional[float] = ..., bytes_down: _Optional[int] = ..., bytes_up: _Optional[int] = ..., samples_processed: _Optional[int] = ..., train_loss: _Optional[float] = ..., tickets: _Optional[_Iterable[str]] = ..., closed_at: _Optional[float] = ..., version: _Optional[int] = ..., score: _Optional[_Union[_tickets_pb2.Score, _Mapping]] = ...) -> None: ...

class ListRoundsRequest(_message.Message):
    __slots__ = ("limit", "before", "kind")
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    BEFORE_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    limit: int
    before: int
    kind: str
    def __init__(self, limit: _Optional[int] = ..., before: _Optional[int] = ..., kind: _Optional[str] = ...) -> None: ...

class ListRoundsReply(_message.Message):
    __slots__ = ("rounds",)
    ROUNDS_FIELD_NUMBER: _ClassVar[int]
    rounds: _containers.RepeatedCompositeFieldContainer[RoundInfo]
    def __init__(self, rounds: _Optional[_Iterable[_Union[RoundInfo, _Mapping]]] = ...) -> None: ...

class ListTicketsRequest(_message.Message):
    __slots__ = ("offset", "limit", "states", "ticket_id")
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    STATES_FIELD_NUMBER: _ClassVar[int]
    TICKET_ID_FIELD_NUMBER: _ClassVar[int]
    offset: int
    limit: int
    states: _containers.RepeatedScalarFieldContainer[_tickets_pb2.TicketState]
    ticket_id: str
    def __init__(self, offset: _Optional[int] = ..., limit: _Optional[int] = ..., states: _Optional[_Iterable[_Union[_tickets_pb2.TicketState, str]]] = ..., ticket_id: _Optional[str] = ...) -> None: ...

class ListTicketsReply(_message.Message):
    __slots__ = ("tickets", "total")
    TICKETS_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    tickets: _containers.RepeatedCompositeFieldContainer[_tickets_pb2.Ticket]
    total: int
    def __init__(self, tickets: _Optional[_Iterable[_Union[_tickets_pb2.Ticket, _Mapping]]] = ..., total: _Optional[int] = ...) -> None: ...

class ModelInfo(_message.Message):
    __slots__ = ("version", "round", "digest", "byte_length", "status", "created_at", "score")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    BYTE_LENGTH_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    version: int
    round: int
    digest: bytes
    byte_length: int
    status: str
    created_at: float
    score: _tickets_pb2.Score
    def __init__(self, version: _Optional[int] = ..., round: _Optional[int] = ..., digest: _Optional[bytes] = ..., byte_length: _Optional[int] = ..., status: _Optional[str] = ..., created_at: _Optional[float] = ..., score: _Optional[_Union[_tickets_pb2.Score, _Mapping]] = ...) -> None: ...

class ListModelsRequest(_message.Message):
    __slots__ = ("offset", "limit", "status")
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    offset: int
    limit: int
    status: str
    def __init__(self, offset: _Optional[int] = ..., limit: _Optional[int] = ..., status: _Optional[str] = ...) -> None: ...

class ListModelsReply(_message.Message):
    __slots__ = ("models", "total")
    MODELS_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    models: _containers.RepeatedCompositeFieldContainer[ModelInfo]
    total: int
    def __init__(self, models: _Optional[_Iterable[_Union[ModelInfo, _Mapping]]] = ..., total: _Optional[int] = ...) -> None: ...

class AuditEntry(_message.Message):
    __slots__ = ("number", "at", "event", "facts", "hash")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    EVENT_FIELD_NUMBER: _ClassVar[int]
    FACTS_FIELD_NUMBER: _ClassVar[int]
    HASH_FIELD_NUMBER: _ClassVar[int]
    number: int
    at: float
    event: str
    facts: str
    hash: bytes
    def __init__(self, number: _Optional[int] = ..., at: _Optional[float] = ..., event: _Optional[str] = ..., facts: _Optional[str] = ..., hash: _Optional[bytes] = ...) -> None: ...

class ListAuditRequest(_message.Message):
    __slots__ = ("before", "limit", "event", "text", "round")
    BEFORE_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    EVENT_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    before: int
    limit: int
    event: str
    text: str
    round: int
    def __init__(self, before: _Optional[int] = ..., limit: _Optional[int] = ..., event: _Optional[str] = ..., text: _Optional[str] = ..., round: _Optional[int] = ...) -> None: ...

class ListAuditReply(_message.Message):
    __slots__ = ("entries",)
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    entries: _containers.RepeatedCompositeFieldContainer[AuditEntry]
    def __init__(self, entries: _Optional[_Iterable[_Union[AuditEntry, _Mapping]]] = ...) -> None: ...

class FollowAuditRequest(_message.Message):
    __slots__ = ("after",)
    AFTER_FIELD_NUMBER: _ClassVar[int]
    after: int
    def __init__(self, after: _Optional[int] = ...) -> None: ...

class FollowAuditReply(_message.Message):
    __slots__ = ("entries",)
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    entries: _containers.RepeatedCompositeFieldContainer[AuditEntry]
    def __init__(self, entries: _Optional[_Iterable[_Union[AuditEntry, _Mapping]]] = ...) -> None: ...

class PauseRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class PauseReply(_message.Message):
    __slots__ = ("position",)
    POSITION_FIELD_NUMBER: _ClassVar[int]
    position: _federation_pb2.Position
    def __init__(self, position: _Optional[_Union[_federation_pb2.Position, _Mapping]] = ...) -> None: ...

class ResumeRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ResumeReply(_message.Message):
    __slots__ = ("position",)
    POSITION_FIELD_NUMBER: _ClassVar[int]
    position: _federation_pb2.Position
    def __init__(self, position: _Optional[_Union[_federation_pb2.Position, _Mapping]] = ...) -> None: ...

class ExtendRequest(_message.Message):
    __slots__ = ("rounds",)
    ROUNDS_FIELD_NUMBER: _ClassVar[int]
    rounds: int
    def __init__(self, rounds: _Optional[int] = ...) -> None: ...

class ExtendReply(_message.Message):
    __slots__ = ("rounds_planned", "position")
    ROUNDS_PLANNED_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    rounds_planned: int
    position: _federation_pb2.Position
    def __init__(self, rounds_planned: _Optional[int] = ..., position: _Optional[_Union[_federation_pb2.Position, _Mapping]] = ...) -> None: ...

class StopRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class StopReply(_message.Message):
    __slots__ = ("position",)
    POSITION_FIELD_NUMBER: _ClassVar[int]
    position: _federation_pb2.Position
    def __init__(self, position: _Optional[_Union[_federation_pb2.Position, _Mapping]] = ...) -> None: ...

class ExportModelRequest(_message.Message):
    __slots__ = ("version", "allow_unready")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    ALLOW_UNREADY_FIELD_NUMBER: _ClassVar[int]
    version: int
    allow_unready: bool
    def __init__(self, version: _Optional[int] = ..., allow_unready: _Optional[bool] = ...) -> None: ...

class ExportModelReply(_message.Message):
    __slots__ = ("header", "chunk")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    header: ExportHeader
    chunk: _tensors_pb2.Chunk
    def __init__(self, header: _Optional[_Union[ExportHeader, _Mapping]] = ..., chunk: _Optional[_Union[_tensors_pb2.Chunk, _Mapping]] = ...) -> None: ...

class ExportHeader(_message.Message):
    __slots__ = ("model", "status", "manifest", "base_digest", "base_seed")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    MANIFEST_FIELD_NUMBER: _ClassVar[int]
    BASE_DIGEST_FIELD_NUMBER: _ClassVar[int]
    BASE_SEED_FIELD_NUMBER: _ClassVar[int]
    model: _federation_pb2.ModelHeader
    status: str
    manifest: _tensors_pb2.Manifest
    base_digest: bytes
    base_seed: int
    def __init__(self, model: _Optional[_Union[_federation_pb2.ModelHeader, _Mapping]] = ..., status: _Optional[str] = ..., manifest: _Optional[_Union[_tensors_pb2.Manifest, _Mapping]] = ..., base_digest: _Optional[bytes] = ..., base_seed: _Optional[int] = ...) -> None: ...

class ReadmitRequest(_message.Message):
    __slots__ = ("client",)
    CLIENT_FIELD_NUMBER: _ClassVar[int]
    client: str
    def __init__(self, client: _Optional[str] = ...) -> None: ...

class ReadmitReply(_message.Message):
    __slots__ = ("client",)
    CLIENT_FIELD_NUMBER: _ClassVar[int]
    client: ClientInfo
    def __init__(self, client: _Optional[_Union[ClientInfo, _Mapping]] = ...) -> None: ...

class ReleaseShardRequest(_message.Message):
    __slots__ = ("client",)
    CLIENT_FIELD_NUMBER: _ClassVar[int]
    client: str
    def __init__(self, client: _Optional[str] = ...) -> None: ...

class ReleaseShardReply(_message.Message):
    __slots__ = ("shard",)
    SHARD_FIELD_NUMBER: _ClassVar[int]
    shard: int
    def __init__(self, shard: _Optional[int] = ...) -> None: ...

class ForgetRequest(_message.Message):
    __slots__ = ("client", "reference", "received_at")
    CLIENT_FIELD_NUMBER: _ClassVar[int]
    REFERENCE_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_AT_FIELD_NUMBER: _ClassVar[int]
    client: str
    reference: str
    received_at: float
    def __init__(self, client: _Optional[str] = ..., reference: _Optional[str] = ..., received_at: _Optional[float] = ...) -> None: ...

class ForgetReply(_message.Message):
    __slots__ = ("ticket", "duplicate")
    TICKET_FIELD_NUMBER: _ClassVar[int]
    DUPLICATE_FIELD_NUMBER: _ClassVar[int]
    ticket: _tickets_pb2.Ticket
    duplicate: bool
    def __init__(self, ticket: _Optional[_Union[_tickets_pb2.Ticket, _Mapping]] = ..., duplicate: _Optional[bool] = ...) -> None: ...

class IssueReceiptRequest(_message.Message):
    __slots__ = ("ticket_id",)
    TICKET_ID_FIELD_NUMBER: _ClassVar[int]
    ticket_id: str
    def __init__(self, ticket_id: _Optional[str] = ...) -> None: ...

class IssueReceiptReply(_message.Message):
    __slots__ = ("receipt",)
    RECEIPT_FIELD_NUMBER: _ClassVar[int]
    receipt: bytes
    def __init__(self, receipt: _Optional[bytes] = ...) -> None: ...

class AllowRequest(_message.Message):
    __slots__ = ("client", "ticket_id")
    CLIENT_FIELD_NUMBER: _ClassVar[int]
    TICKET_ID_FIELD_NUMBER: _ClassVar[int]
    client: str
    ticket_id: str
    def __init__(self, client: _Optional[str] = ..., ticket_id: _Optional[str] = ...) -> None: ...

class AllowReply(_message.Message):
    __slots__ = ("position",)
    POSITION_FIELD_NUMBER: _ClassVar[int]
    position: _federation_pb2.Position
    def __init__(self, position: _Optional[_Union[_federation_pb2.Position, _Mapping]] = ...) -> None: ...

class ReleaseRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ReleaseReply(_message.Message):
    __slots__ = ("position",)
    POSITION_FIELD_NUMBER: _ClassVar[int]
    position: _federation_pb2.Position
    def __init__(self, position: _Optional[_Union[_federation_pb2.Position, _Mapping]] = ...) -> None: ...

class RollbackRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class RollbackReply(_message.Message):
    __slots__ = ("version", "position")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    version: int
    position: _federation_pb2.Position
    def __init__(self, version: _Optional[int] = ..., position: _Optional[_Union[_federation_pb2.Position, _Mapping]] = ...) -> None: ...
