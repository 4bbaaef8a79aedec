from puf_common.v1 import tensors_pb2 as _tensors_pb2
from puf_common.v1 import tickets_pb2 as _tickets_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Phase(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PHASE_UNSPECIFIED: _ClassVar[Phase]
    PHASE_WAITING: _ClassVar[Phase]
    PHASE_TRAINING: _ClassVar[Phase]
    PHASE_UNLEARNING: _ClassVar[Phase]
    PHASE_RECOVERING: _ClassVar[Phase]
    PHASE_IDLE: _ClassVar[Phase]
    PHASE_PAUSED: _ClassVar[Phase]
    PHASE_STOPPING: _ClassVar[Phase]

class Part(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PART_UNSPECIFIED: _ClassVar[Part]
    PART_MAIN: _ClassVar[Part]
    PART_RETAIN: _ClassVar[Part]
    PART_FORGET: _ClassVar[Part]
PHASE_UNSPECIFIED: Phase
PHASE_WAITING: Phase
PHASE_TRAINING: Phase
PHASE_UNLEARNING: Phase
PHASE_RECOVERING: Phase
PHASE_IDLE: Phase
PHASE_PAUSED: Phase
PHASE_STOPPING: Phase
PART_UNSPECIFIED: Part
PART_MAIN: Part
PART_RETAIN: Part
PART_FORGET: Part

class Position(_message.Message):
    __slots__ = ("round", "model_version", "phase")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    MODEL_VERSION_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    round: int
    model_version: int
    phase: Phase
    def __init__(self, round: _Optional[int] = ..., model_version: _Optional[int] = ..., phase: _Optional[_Union[Phase, str]] = ...) -> None: ...

class Recipe(_message.Message):
    __slots__ = ("optimizer", "lr", "lr_decay", "momentum", "weight_decay", "batch_size", "epochs", "seed", "threads", "plain_unlearning", "channels_last", "amp", "compile", "fingerprint")
    OPTIMIZER_FIELD_NUMBER: _ClassVar[int]
    LR_FIELD_NUMBER: _ClassVar[int]
    LR_DECAY_FIELD_NUMBER: _ClassVar[int]
    MOMENTUM_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_DECAY_FIELD_NUMBER: _ClassVar[int]
    BATCH_SIZE_FIELD_NUMBER: _ClassVar[int]
    EPOCHS_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    THREADS_FIELD_NUMBER: _ClassVar[int]
    PLAIN_UNLEARNING_FIELD_NUMBER: _ClassVar[int]
    CHANNELS_LAST_FIELD_NUMBER: _ClassVar[int]
    AMP_FIELD_NUMBER: _ClassVar[int]
    COMPILE_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    optimizer: str
    lr: float
    lr_decay: float
    momentum: float
    weight_decay: float
    batch_size: int
    epochs: int
    seed: int
    threads: int
    plain_unlearning: bool
    channels_last: bool
    amp: bool
    compile: bool
    fingerprint: bytes
    def __init__(self, optimizer: _Optional[str] = ..., lr: _Optional[float] = ..., lr_decay: _Optional[float] = ..., momentum: _Optional[float] = ..., weight_decay: _Optional[float] = ..., batch_size: _Optional[int] = ..., epochs: _Optional[int] = ..., seed: _Optional[int] = ..., threads: _Optional[int] = ..., plain_unlearning: _Optional[bool] = ..., channels_last: _Optional[bool] = ..., amp: _Optional[bool] = ..., compile: _Optional[bool] = ..., fingerprint: _Optional[bytes] = ...) -> None: ...

class DescribeRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DescribeReply(_message.Message):
    __slots__ = ("federation_id", "title", "server_version", "model", "model_options", "task", "recipe", "manifest", "plugin_version", "rounds_planned", "forgetting", "position", "server_key", "method", "fallback", "remembers", "update_encoding", "base_digest", "base_seed")
    class ModelOptionsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    FEDERATION_ID_FIELD_NUMBER: _ClassVar[int]
    TITLE_FIELD_NUMBER: _ClassVar[int]
    SERVER_VERSION_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    MODEL_OPTIONS_FIELD_NUMBER: _ClassVar[int]
    TASK_FIELD_NUMBER: _ClassVar[int]
    RECIPE_FIELD_NUMBER: _ClassVar[int]
    MANIFEST_FIELD_NUMBER: _ClassVar[int]
    PLUGIN_VERSION_FIELD_NUMBER: _ClassVar[int]
    ROUNDS_PLANNED_FIELD_NUMBER: _ClassVar[int]
    FORGETTING_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    SERVER_KEY_FIELD_NUMBER: _ClassVar[int]
    METHOD_FIELD_NUMBER: _ClassVar[int]
    FALLBACK_FIELD_NUMBER: _ClassVar[int]
    REMEMBERS_FIELD_NUMBER: _ClassVar[int]
    UPDATE_ENCODING_FIELD_NUMBER: _ClassVar[int]
    BASE_DIGEST_FIELD_NUMBER: _ClassVar[int]
    BASE_SEED_FIELD_NUMBER: _ClassVar[int]
    federation_id: str
    title: str
    server_version: str
    model: str
    model_options: _containers.ScalarMap[str, str]
    task: str
    recipe: Recipe
    manifest: _tensors_pb2.Manifest
    plugin_version: str
    rounds_planned: int
    forgetting: ForgettingPolicy
    position: Position
    server_key: bytes
    method: str
    fallback: str
    remembers: _containers.RepeatedScalarFieldContainer[str]
    update_encoding: _tensors_pb2.Encoding
    base_digest: bytes
    base_seed: int
    def __init__(self, federation_id: _Optional[str] = ..., title: _Optional[str] = ..., server_version: _Optional[str] = ..., model: _Optional[str] = ..., model_options: _Optional[_Mapping[str, str]] = ..., task: _Optional[str] = ..., recipe: _Optional[_Union[Recipe, _Mapping]] = ..., manifest: _Optional[_Union[_tensors_pb2.Manifest, _Mapping]] = ..., plugin_version: _Optional[str] = ..., rounds_planned: _Optional[int] = ..., forgetting: _Optional[_Union[ForgettingPolicy, _Mapping]] = ..., position: _Optional[_Union[Position, _Mapping]] = ..., server_key: _Optional[bytes] = ..., method: _Optional[str] = ..., fallback: _Optional[str] = ..., remembers: _Optional[_Iterable[str]] = ..., update_encoding: _Optional[_Union[_tensors_pb2.Encoding, str]] = ..., base_digest: _Optional[bytes] = ..., base_seed: _Optional[int] = ...) -> None: ...

class ForgettingPolicy(_message.Message):
    __slots__ = ("default_mode", "default_kappa", "min_kappa", "max_kappa", "max_eta_u", "default_epochs", "max_epochs", "special_allowed", "default_flip", "deadline_days", "max_recovery_rounds", "special_min_targets", "default_auto", "max_dose", "max_doses")
    DEFAULT_MODE_FIELD_NUMBER: _ClassVar[int]
    DEFAULT_KAPPA_FIELD_NUMBER: _ClassVar[int]
    MIN_KAPPA_FIELD_NUMBER: _ClassVar[int]
    MAX_KAPPA_FIELD_NUMBER: _ClassVar[int]
    MAX_ETA_U_FIELD_NUMBER: _ClassVar[int]
    DEFAULT_EPOCHS_FIELD_NUMBER: _ClassVar[int]
    MAX_EPOCHS_FIELD_NUMBER: _ClassVar[int]
    SPECIAL_ALLOWED_FIELD_NUMBER: _ClassVar[int]
    DEFAULT_FLIP_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_DAYS_FIELD_NUMBER: _ClassVar[int]
    MAX_RECOVERY_ROUNDS_FIELD_NUMBER: _ClassVar[int]
    SPECIAL_MIN_TARGETS_FIELD_NUMBER: _ClassVar[int]
    DEFAULT_AUTO_FIELD_NUMBER: _ClassVar[int]
    MAX_DOSE_FIELD_NUMBER: _ClassVar[int]
    MAX_DOSES_FIELD_NUMBER: _ClassVar[int]
    default_mode: _tickets_pb2.Mode
    default_kappa: float
    min_kappa: float
    max_kappa: float
    max_eta_u: float
    default_epochs: int
    max_epochs: int
    special_allowed: bool
    default_flip: _tickets_pb2.Flip
    deadline_days: float
    max_recovery_rounds: int
    special_min_targets: int
    default_auto: bool
    max_dose: float
    max_doses: int
    def __init__(self, default_mode: _Optional[_Union[_tickets_pb2.Mode, str]] = ..., default_kappa: _Optional[float] = ..., min_kappa: _Optional[float] = ..., max_kappa: _Optional[float] = ..., max_eta_u: _Optional[float] = ..., default_epochs: _Optional[int] = ..., max_epochs: _Optional[int] = ..., special_allowed: _Optional[bool] = ..., default_flip: _Optional[_Union[_tickets_pb2.Flip, str]] = ..., deadline_days: _Optional[float] = ..., max_recovery_rounds: _Optional[int] = ..., special_min_targets: _Optional[int] = ..., default_auto: _Optional[bool] = ..., max_dose: _Optional[float] = ..., max_doses: _Optional[int] = ...) -> None: ...

class LeaseShardRequest(_message.Message):
    __slots__ = ("wish",)
    WISH_FIELD_NUMBER: _ClassVar[int]
    wish: int
    def __init__(self, wish: _Optional[int] = ...) -> None: ...

class LeaseShardReply(_message.Message):
    __slots__ = ("shard", "shards")
    SHARD_FIELD_NUMBER: _ClassVar[int]
    SHARDS_FIELD_NUMBER: _ClassVar[int]
    shard: int
    shards: int
    def __init__(self, shard: _Optional[int] = ..., shards: _Optional[int] = ...) -> None: ...

class JoinRequest(_message.Message):
    __slots__ = ("instance", "samples", "holdout_samples", "manifest_fingerprint", "recipe_fingerprint", "plugin_version", "client_version", "device", "rejoin", "only_if_no_worker", "unlabeled_samples", "added_samples", "adapts", "base_digest")
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    HOLDOUT_SAMPLES_FIELD_NUMBER: _ClassVar[int]
    MANIFEST_FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    RECIPE_FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    PLUGIN_VERSION_FIELD_NUMBER: _ClassVar[int]
    CLIENT_VERSION_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    REJOIN_FIELD_NUMBER: _ClassVar[int]
    ONLY_IF_NO_WORKER_FIELD_NUMBER: _ClassVar[int]
    UNLABELED_SAMPLES_FIELD_NUMBER: _ClassVar[int]
    ADDED_SAMPLES_FIELD_NUMBER: _ClassVar[int]
    ADAPTS_FIELD_NUMBER: _ClassVar[int]
    BASE_DIGEST_FIELD_NUMBER: _ClassVar[int]
    instance: str
    samples: int
    holdout_samples: int
    manifest_fingerprint: bytes
    recipe_fingerprint: bytes
    plugin_version: str
    client_version: str
    device: str
    rejoin: bool
    only_if_no_worker: bool
    unlabeled_samples: int
    added_samples: int
    adapts: bool
    base_digest: bytes
    def __init__(self, instance: _Optional[str] = ..., samples: _Optional[int] = ..., holdout_samples: _Optional[int] = ..., manifest_fingerprint: _Optional[bytes] = ..., recipe_fingerprint: _Optional[bytes] = ..., plugin_version: _Optional[str] = ..., client_version: _Optional[str] = ..., device: _Optional[str] = ..., rejoin: _Optional[bool] = ..., only_if_no_worker: _Optional[bool] = ..., unlabeled_samples: _Optional[int] = ..., added_samples: _Optional[int] = ..., adapts: _Optional[bool] = ..., base_digest: _Optional[bytes] = ...) -> None: ...

class JoinReply(_message.Message):
    __slots__ = ("session", "membership", "heartbeat_seconds", "chunk_bytes", "position", "server_key", "digest_kinds", "remembers")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    MEMBERSHIP_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    CHUNK_BYTES_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    SERVER_KEY_FIELD_NUMBER: _ClassVar[int]
    DIGEST_KINDS_FIELD_NUMBER: _ClassVar[int]
    REMEMBERS_FIELD_NUMBER: _ClassVar[int]
    session: str
    membership: int
    heartbeat_seconds: float
    chunk_bytes: int
    position: Position
    server_key: bytes
    digest_kinds: _containers.RepeatedScalarFieldContainer[_tensors_pb2.DigestKind]
    remembers: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, session: _Optional[str] = ..., membership: _Optional[int] = ..., heartbeat_seconds: _Optional[float] = ..., chunk_bytes: _Optional[int] = ..., position: _Optional[_Union[Position, _Mapping]] = ..., server_key: _Optional[bytes] = ..., digest_kinds: _Optional[_Iterable[_Union[_tensors_pb2.DigestKind, str]]] = ..., remembers: _Optional[_Iterable[str]] = ...) -> None: ...

class HeartbeatRequest(_message.Message):
    __slots__ = ("session", "activity", "training_id")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    ACTIVITY_FIELD_NUMBER: _ClassVar[int]
    TRAINING_ID_FIELD_NUMBER: _ClassVar[int]
    session: str
    activity: str
    training_id: str
    def __init__(self, session: _Optional[str] = ..., activity: _Optional[str] = ..., training_id: _Optional[str] = ...) -> None: ...

class HeartbeatReply(_message.Message):
    __slots__ = ("position", "abandon_training")
    POSITION_FIELD_NUMBER: _ClassVar[int]
    ABANDON_TRAINING_FIELD_NUMBER: _ClassVar[int]
    position: Position
    abandon_training: bool
    def __init__(self, position: _Optional[_Union[Position, _Mapping]] = ..., abandon_training: _Optional[bool] = ...) -> None: ...

class DeclineWorkRequest(_message.Message):
    __slots__ = ("key", "reason", "session", "for_good")
    KEY_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    FOR_GOOD_FIELD_NUMBER: _ClassVar[int]
    key: WorkKey
    reason: str
    session: str
    for_good: bool
    def __init__(self, key: _Optional[_Union[WorkKey, _Mapping]] = ..., reason: _Optional[str] = ..., session: _Optional[str] = ..., for_good: _Optional[bool] = ...) -> None: ...

class DeclineWorkReply(_message.Message):
    __slots__ = ("position",)
    POSITION_FIELD_NUMBER: _ClassVar[int]
    position: Position
    def __init__(self, position: _Optional[_Union[Position, _Mapping]] = ...) -> None: ...

class LeaveRequest(_message.Message):
    __slots__ = ("session",)
    SESSION_FIELD_NUMBER: _ClassVar[int]
    session: str
    def __init__(self, session: _Optional[str] = ...) -> None: ...

class LeaveReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class WaitForWorkRequest(_message.Message):
    __slots__ = ("session", "timeout_seconds")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    session: str
    timeout_seconds: float
    def __init__(self, session: _Optional[str] = ..., timeout_seconds: _Optional[float] = ...) -> None: ...

class WaitForWorkReply(_message.Message):
    __slots__ = ("position", "train", "evaluate", "leave")
    POSITION_FIELD_NUMBER: _ClassVar[int]
    TRAIN_FIELD_NUMBER: _ClassVar[int]
    EVALUATE_FIELD_NUMBER: _ClassVar[int]
    LEAVE_FIELD_NUMBER: _ClassVar[int]
    position: Position
    train: TrainWork
    evaluate: EvaluateWork
    leave: LeaveOrder
    def __init__(self, position: _Optional[_Union[Position, _Mapping]] = ..., train: _Optional[_Union[TrainWork, _Mapping]] = ..., evaluate: _Optional[_Union[EvaluateWork, _Mapping]] = ..., leave: _Optional[_Union[LeaveOrder, _Mapping]] = ...) -> None: ...

class WorkKey(_message.Message):
    __slots__ = ("membership", "round", "attempt", "part")
    MEMBERSHIP_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    membership: int
    round: int
    attempt: int
    part: Part
    def __init__(self, membership: _Optional[int] = ..., round: _Optional[int] = ..., attempt: _Optional[int] = ..., part: _Optional[_Union[Part, str]] = ...) -> None: ...

class TrainWork(_message.Message):
    __slots__ = ("key", "base_version", "lr", "epochs", "scale", "flip", "samples", "seconds_left", "ticket_id", "forget_request", "plain", "training_id", "routine", "options", "aux_version", "outputs", "stream_round", "unseen", "taken_requests")
    class OptionsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    KEY_FIELD_NUMBER: _ClassVar[int]
    BASE_VERSION_FIELD_NUMBER: _ClassVar[int]
    LR_FIELD_NUMBER: _ClassVar[int]
    EPOCHS_FIELD_NUMBER: _ClassVar[int]
    SCALE_FIELD_NUMBER: _ClassVar[int]
    FLIP_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    SECONDS_LEFT_FIELD_NUMBER: _ClassVar[int]
    TICKET_ID_FIELD_NUMBER: _ClassVar[int]
    FORGET_REQUEST_FIELD_NUMBER: _ClassVar[int]
    PLAIN_FIELD_NUMBER: _ClassVar[int]
    TRAINING_ID_FIELD_NUMBER: _ClassVar[int]
    ROUTINE_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    AUX_VERSION_FIELD_NUMBER: _ClassVar[int]
    OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    STREAM_ROUND_FIELD_NUMBER: _ClassVar[int]
    UNSEEN_FIELD_NUMBER: _ClassVar[int]
    TAKEN_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    key: WorkKey
    base_version: int
    lr: float
    epochs: float
    scale: float
    flip: _tickets_pb2.Flip
    samples: int
    seconds_left: float
    ticket_id: str
    forget_request: str
    plain: bool
    training_id: str
    routine: str
    options: _containers.ScalarMap[str, float]
    aux_version: int
    outputs: _containers.RepeatedScalarFieldContainer[str]
    stream_round: int
    unseen: _tickets_pb2.ClassTable
    taken_requests: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, key: _Optional[_Union[WorkKey, _Mapping]] = ..., base_version: _Optional[int] = ..., lr: _Optional[float] = ..., epochs: _Optional[float] = ..., scale: _Optional[float] = ..., flip: _Optional[_Union[_tickets_pb2.Flip, str]] = ..., samples: _Optional[int] = ..., seconds_left: _Optional[float] = ..., ticket_id: _Optional[str] = ..., forget_request: _Optional[str] = ..., plain: _Optional[bool] = ..., training_id: _Optional[str] = ..., routine: _Optional[str] = ..., options: _Optional[_Mapping[str, float]] = ..., aux_version: _Optional[int] = ..., outputs: _Optional[_Iterable[str]] = ..., stream_round: _Optional[int] = ..., unseen: _Optional[_Union[_tickets_pb2.ClassTable, _Mapping]] = ..., taken_requests: _Optional[_Iterable[str]] = ...) -> None: ...

class EvaluateWork(_message.Message):
    __slots__ = ("evaluation", "version", "training_side")
    EVALUATION_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    TRAINING_SIDE_FIELD_NUMBER: _ClassVar[int]
    evaluation: int
    version: int
    training_side: bool
    def __init__(self, evaluation: _Optional[int] = ..., version: _Optional[int] = ..., training_side: _Optional[bool] = ...) -> None: ...

class LeaveOrder(_message.Message):
    __slots__ = ("reason", "message")
    class Reason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        REASON_UNSPECIFIED: _ClassVar[LeaveOrder.Reason]
        REASON_FORGOTTEN: _ClassVar[LeaveOrder.Reason]
        REASON_STOPPED: _ClassVar[LeaveOrder.Reason]
        REASON_REMOVED: _ClassVar[LeaveOrder.Reason]
    REASON_UNSPECIFIED: LeaveOrder.Reason
    REASON_FORGOTTEN: LeaveOrder.Reason
    REASON_STOPPED: LeaveOrder.Reason
    REASON_REMOVED: LeaveOrder.Reason
    REASON_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    reason: LeaveOrder.Reason
    message: str
    def __init__(self, reason: _Optional[_Union[LeaveOrder.Reason, str]] = ..., message: _Optional[str] = ...) -> None: ...

class FetchModelRequest(_message.Message):
    __slots__ = ("version", "held_digest", "held_version", "resume_at", "resume_digest")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    HELD_DIGEST_FIELD_NUMBER: _ClassVar[int]
    HELD_VERSION_FIELD_NUMBER: _ClassVar[int]
    RESUME_AT_FIELD_NUMBER: _ClassVar[int]
    RESUME_DIGEST_FIELD_NUMBER: _ClassVar[int]
    version: int
    held_digest: bytes
    held_version: int
    resume_at: int
    resume_digest: bytes
    def __init__(self, version: _Optional[int] = ..., held_digest: _Optional[bytes] = ..., held_version: _Optional[int] = ..., resume_at: _Optional[int] = ..., resume_digest: _Optional[bytes] = ...) -> None: ...

class Difference(_message.Message):
    __slots__ = ("base_version", "kind", "byte_length", "digest")
    BASE_VERSION_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    BYTE_LENGTH_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    base_version: int
    kind: _tensors_pb2.DifferenceKind
    byte_length: int
    digest: bytes
    def __init__(self, base_version: _Optional[int] = ..., kind: _Optional[_Union[_tensors_pb2.DifferenceKind, str]] = ..., byte_length: _Optional[int] = ..., digest: _Optional[bytes] = ...) -> None: ...

class ModelHeader(_message.Message):
    __slots__ = ("version", "round", "byte_length", "digest", "manifest_fingerprint", "blake3", "difference", "begins_at")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    BYTE_LENGTH_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    MANIFEST_FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    BLAKE3_FIELD_NUMBER: _ClassVar[int]
    DIFFERENCE_FIELD_NUMBER: _ClassVar[int]
    BEGINS_AT_FIELD_NUMBER: _ClassVar[int]
    version: int
    round: int
    byte_length: int
    digest: bytes
    manifest_fingerprint: bytes
    blake3: bytes
    difference: Difference
    begins_at: int
    def __init__(self, version: _Optional[int] = ..., round: _Optional[int] = ..., byte_length: _Optional[int] = ..., digest: _Optional[bytes] = ..., manifest_fingerprint: _Optional[bytes] = ..., blake3: _Optional[bytes] = ..., difference: _Optional[_Union[Difference, _Mapping]] = ..., begins_at: _Optional[int] = ...) -> None: ...

class FetchModelReply(_message.Message):
    __slots__ = ("header", "chunk")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    header: ModelHeader
    chunk: _tensors_pb2.Chunk
    def __init__(self, header: _Optional[_Union[ModelHeader, _Mapping]] = ..., chunk: _Optional[_Union[_tensors_pb2.Chunk, _Mapping]] = ...) -> None: ...

class UpdateHeader(_message.Message):
    __slots__ = ("key", "base_version", "samples", "applied_scale", "byte_length", "digest", "manifest_fingerprint", "train_loss", "samples_processed", "encoding", "resume_at", "digest_kind", "dose", "unlearned_samples", "unlearned_digest", "base_digest")
    KEY_FIELD_NUMBER: _ClassVar[int]
    BASE_VERSION_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    APPLIED_SCALE_FIELD_NUMBER: _ClassVar[int]
    BYTE_LENGTH_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    MANIFEST_FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    TRAIN_LOSS_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_PROCESSED_FIELD_NUMBER: _ClassVar[int]
    ENCODING_FIELD_NUMBER: _ClassVar[int]
    RESUME_AT_FIELD_NUMBER: _ClassVar[int]
    DIGEST_KIND_FIELD_NUMBER: _ClassVar[int]
    DOSE_FIELD_NUMBER: _ClassVar[int]
    UNLEARNED_SAMPLES_FIELD_NUMBER: _ClassVar[int]
    UNLEARNED_DIGEST_FIELD_NUMBER: _ClassVar[int]
    BASE_DIGEST_FIELD_NUMBER: _ClassVar[int]
    key: WorkKey
    base_version: int
    samples: int
    applied_scale: float
    byte_length: int
    digest: bytes
    manifest_fingerprint: bytes
    train_loss: float
    samples_processed: int
    encoding: _tensors_pb2.Encoding
    resume_at: int
    digest_kind: _tensors_pb2.DigestKind
    dose: DoseReport
    unlearned_samples: int
    unlearned_digest: bytes
    base_digest: bytes
    def __init__(self, key: _Optional[_Union[WorkKey, _Mapping]] = ..., base_version: _Optional[int] = ..., samples: _Optional[int] = ..., applied_scale: _Optional[float] = ..., byte_length: _Optional[int] = ..., digest: _Optional[bytes] = ..., manifest_fingerprint: _Optional[bytes] = ..., train_loss: _Optional[float] = ..., samples_processed: _Optional[int] = ..., encoding: _Optional[_Union[_tensors_pb2.Encoding, str]] = ..., resume_at: _Optional[int] = ..., digest_kind: _Optional[_Union[_tensors_pb2.DigestKind, str]] = ..., dose: _Optional[_Union[DoseReport, _Mapping]] = ..., unlearned_samples: _Optional[int] = ..., unlearned_digest: _Optional[bytes] = ..., base_digest: _Optional[bytes] = ...) -> None: ...

class DoseReport(_message.Message):
    __slots__ = ("kappa", "gap", "hold")
    KAPPA_FIELD_NUMBER: _ClassVar[int]
    GAP_FIELD_NUMBER: _ClassVar[int]
    HOLD_FIELD_NUMBER: _ClassVar[int]
    kappa: float
    gap: _tickets_pb2.Gap
    hold: bool
    def __init__(self, kappa: _Optional[float] = ..., gap: _Optional[_Union[_tickets_pb2.Gap, _Mapping]] = ..., hold: _Optional[bool] = ...) -> None: ...

class FindUploadRequest(_message.Message):
    __slots__ = ("header",)
    HEADER_FIELD_NUMBER: _ClassVar[int]
    header: UpdateHeader
    def __init__(self, header: _Optional[_Union[UpdateHeader, _Mapping]] = ...) -> None: ...

class FindUploadReply(_message.Message):
    __slots__ = ("offset",)
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    offset: int
    def __init__(self, offset: _Optional[int] = ...) -> None: ...

class SubmitUpdateRequest(_message.Message):
    __slots__ = ("header", "chunk")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    header: UpdateHeader
    chunk: _tensors_pb2.Chunk
    def __init__(self, header: _Optional[_Union[UpdateHeader, _Mapping]] = ..., chunk: _Optional[_Union[_tensors_pb2.Chunk, _Mapping]] = ...) -> None: ...

class SubmitUpdateReply(_message.Message):
    __slots__ = ("position", "duplicate")
    POSITION_FIELD_NUMBER: _ClassVar[int]
    DUPLICATE_FIELD_NUMBER: _ClassVar[int]
    position: Position
    duplicate: bool
    def __init__(self, position: _Optional[_Union[Position, _Mapping]] = ..., duplicate: _Optional[bool] = ...) -> None: ...

class ReportEvaluationRequest(_message.Message):
    __slots__ = ("evaluation", "version", "holdout", "training")
    EVALUATION_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    HOLDOUT_FIELD_NUMBER: _ClassVar[int]
    TRAINING_FIELD_NUMBER: _ClassVar[int]
    evaluation: int
    version: int
    holdout: _tickets_pb2.EvaluationSums
    training: _tickets_pb2.EvaluationSums
    def __init__(self, evaluation: _Optional[int] = ..., version: _Optional[int] = ..., holdout: _Optional[_Union[_tickets_pb2.EvaluationSums, _Mapping]] = ..., training: _Optional[_Union[_tickets_pb2.EvaluationSums, _Mapping]] = ...) -> None: ...

class ReportEvaluationReply(_message.Message):
    __slots__ = ("position",)
    POSITION_FIELD_NUMBER: _ClassVar[int]
    position: Position
    def __init__(self, position: _Optional[_Union[Position, _Mapping]] = ...) -> None: ...

class FileUnlearningRequest(_message.Message):
    __slots__ = ("request", "dry_run")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    request: _tickets_pb2.UnlearningRequest
    dry_run: bool
    def __init__(self, request: _Optional[_Union[_tickets_pb2.UnlearningRequest, _Mapping]] = ..., dry_run: _Optional[bool] = ...) -> None: ...

class FileUnlearningReply(_message.Message):
    __slots__ = ("ticket", "duplicate", "position")
    TICKET_FIELD_NUMBER: _ClassVar[int]
    DUPLICATE_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    ticket: _tickets_pb2.Ticket
    duplicate: bool
    position: Position
    def __init__(self, ticket: _Optional[_Union[_tickets_pb2.Ticket, _Mapping]] = ..., duplicate: _Optional[bool] = ..., position: _Optional[_Union[Position, _Mapping]] = ...) -> None: ...

class ListMyTicketsRequest(_message.Message):
    __slots__ = ("offset",)
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    offset: int
    def __init__(self, offset: _Optional[int] = ...) -> None: ...

class ListMyTicketsReply(_message.Message):
    __slots__ = ("tickets", "roster")
    TICKETS_FIELD_NUMBER: _ClassVar[int]
    ROSTER_FIELD_NUMBER: _ClassVar[int]
    tickets: _containers.RepeatedCompositeFieldContainer[_tickets_pb2.Ticket]
    roster: RosterEntry
    def __init__(self, tickets: _Optional[_Iterable[_Union[_tickets_pb2.Ticket, _Mapping]]] = ..., roster: _Optional[_Union[RosterEntry, _Mapping]] = ...) -> None: ...

class RosterEntry(_message.Message):
    __slots__ = ("membership", "active", "samples", "first_round", "last_round")
    MEMBERSHIP_FIELD_NUMBER: _ClassVar[int]
    ACTIVE_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    FIRST_ROUND_FIELD_NUMBER: _ClassVar[int]
    LAST_ROUND_FIELD_NUMBER: _ClassVar[int]
    membership: int
    active: bool
    samples: int
    first_round: int
    last_round: int
    def __init__(self, membership: _Optional[int] = ..., active: _Optional[bool] = ..., samples: _Optional[int] = ..., first_round: _Optional[int] = ..., last_round: _Optional[int] = ...) -> None: ...

class FollowTicketRequest(_message.Message):
    __slots__ = ("ticket_id",)
    TICKET_ID_FIELD_NUMBER: _ClassVar[int]
    ticket_id: str
    def __init__(self, ticket_id: _Optional[str] = ...) -> None: ...

class FollowTicketReply(_message.Message):
    __slots__ = ("ticket", "position")
    TICKET_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    ticket: _tickets_pb2.Ticket
    position: Position
    def __init__(self, ticket: _Optional[_Union[_tickets_pb2.Ticket, _Mapping]] = ..., position: _Optional[_Union[Position, _Mapping]] = ...) -> None: ...

class ReportMeasurementRequest(_message.Message):
    __slots__ = ("ticket_id", "version", "forget", "holdout", "yeom", "song", "own", "pool", "gap")
    TICKET_ID_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    FORGET_FIELD_NUMBER: _ClassVar[int]
    HOLDOUT_FIELD_NUMBER: _ClassVar[int]
    YEOM_FIELD_NUMBER: _ClassVar[int]
    SONG_FIELD_NUMBER: _ClassVar[int]
    OWN_FIELD_NUMBER: _ClassVar[int]
    POOL_FIELD_NUMBER: _ClassVar[int]
    GAP_FIELD_NUMBER: _ClassVar[int]
    ticket_id: str
    version: int
    forget: _tickets_pb2.EvaluationSums
    holdout: _tickets_pb2.EvaluationSums
    yeom: _tickets_pb2.MembershipAttack
    song: _tickets_pb2.MembershipAttack
    own: _tickets_pb2.RankComparison
    pool: _tickets_pb2.RankComparison
    gap: _tickets_pb2.Gap
    def __init__(self, ticket_id: _Optional[str] = ..., version: _Optional[int] = ..., forget: _Optional[_Union[_tickets_pb2.EvaluationSums, _Mapping]] = ..., holdout: _Optional[_Union[_tickets_pb2.EvaluationSums, _Mapping]] = ..., yeom: _Optional[_Union[_tickets_pb2.MembershipAttack, _Mapping]] = ..., song: _Optional[_Union[_tickets_pb2.MembershipAttack, _Mapping]] = ..., own: _Optional[_Union[_tickets_pb2.RankComparison, _Mapping]] = ..., pool: _Optional[_Union[_tickets_pb2.RankComparison, _Mapping]] = ..., gap: _Optional[_Union[_tickets_pb2.Gap, _Mapping]] = ...) -> None: ...

class ReportMeasurementReply(_message.Message):
    __slots__ = ("ticket",)
    TICKET_FIELD_NUMBER: _ClassVar[int]
    ticket: _tickets_pb2.Ticket
    def __init__(self, ticket: _Optional[_Union[_tickets_pb2.Ticket, _Mapping]] = ...) -> None: ...

class WithdrawUnlearningRequest(_message.Message):
    __slots__ = ("ticket_id",)
    TICKET_ID_FIELD_NUMBER: _ClassVar[int]
    ticket_id: str
    def __init__(self, ticket_id: _Optional[str] = ...) -> None: ...

class WithdrawUnlearningReply(_message.Message):
    __slots__ = ("ticket",)
    TICKET_FIELD_NUMBER: _ClassVar[int]
    ticket: _tickets_pb2.Ticket
    def __init__(self, ticket: _Optional[_Union[_tickets_pb2.Ticket, _Mapping]] = ...) -> None: ...

class GetReceiptRequest(_message.Message):
    __slots__ = ("ticket_id",)
    TICKET_ID_FIELD_NUMBER: _ClassVar[int]
    ticket_id: str
    def __init__(self, ticket_id: _Optional[str] = ...) -> None: ...

class GetReceiptReply(_message.Message):
    __slots__ = ("receipt",)
    RECEIPT_FIELD_NUMBER: _ClassVar[int]
    receipt: bytes
    def __init__(self, receipt: _Optional[bytes] = ...) -> None: ...

class PresentReceiptRequest(_message.Message):
    __slots__ = ("receipt",)
    RECEIPT_FIELD_NUMBER: _ClassVar[int]
    receipt: bytes
    def __init__(self, receipt: _Optional[bytes] = ...) -> None: ...

class PresentReceiptReply(_message.Message):
    __slots__ = ("reopened", "outcome", "ticket")
    REOPENED_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    TICKET_FIELD_NUMBER: _ClassVar[int]
    reopened: bool
    outcome: str
    ticket: _tickets_pb2.Ticket
    def __init__(self, reopened: _Optional[bool] = ..., outcome: _Optional[str] = ..., ticket: _Optional[_Union[_tickets_pb2.Ticket, _Mapping]] = ...) -> None: ...
