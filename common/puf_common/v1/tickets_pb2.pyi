from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Scope(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SCOPE_UNSPECIFIED: _ClassVar[Scope]
    SCOPE_CLIENT: _ClassVar[Scope]
    SCOPE_SAMPLES: _ClassVar[Scope]

class Mode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    MODE_UNSPECIFIED: _ClassVar[Mode]
    MODE_REGULAR: _ClassVar[Mode]
    MODE_SPECIAL: _ClassVar[Mode]

class Flip(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FLIP_UNSPECIFIED: _ClassVar[Flip]
    FLIP_CLIENT: _ClassVar[Flip]
    FLIP_SERVER: _ClassVar[Flip]

class TicketState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TICKET_STATE_UNSPECIFIED: _ClassVar[TicketState]
    TICKET_STATE_PENDING: _ClassVar[TicketState]
    TICKET_STATE_SCHEDULED: _ClassVar[TicketState]
    TICKET_STATE_APPLIED: _ClassVar[TicketState]
    TICKET_STATE_RECOVERING: _ClassVar[TicketState]
    TICKET_STATE_COMPLETED: _ClassVar[TicketState]
    TICKET_STATE_FAILED: _ClassVar[TicketState]
    TICKET_STATE_WITHDRAWN: _ClassVar[TicketState]
SCOPE_UNSPECIFIED: Scope
SCOPE_CLIENT: Scope
SCOPE_SAMPLES: Scope
MODE_UNSPECIFIED: Mode
MODE_REGULAR: Mode
MODE_SPECIAL: Mode
FLIP_UNSPECIFIED: Flip
FLIP_CLIENT: Flip
FLIP_SERVER: Flip
TICKET_STATE_UNSPECIFIED: TicketState
TICKET_STATE_PENDING: TicketState
TICKET_STATE_SCHEDULED: TicketState
TICKET_STATE_APPLIED: TicketState
TICKET_STATE_RECOVERING: TicketState
TICKET_STATE_COMPLETED: TicketState
TICKET_STATE_FAILED: TicketState
TICKET_STATE_WITHDRAWN: TicketState

class Strength(_message.Message):
    __slots__ = ("kappa", "eta_u", "auto", "epochs")
    KAPPA_FIELD_NUMBER: _ClassVar[int]
    ETA_U_FIELD_NUMBER: _ClassVar[int]
    AUTO_FIELD_NUMBER: _ClassVar[int]
    EPOCHS_FIELD_NUMBER: _ClassVar[int]
    kappa: float
    eta_u: float
    auto: bool
    epochs: int
    def __init__(self, kappa: _Optional[float] = ..., eta_u: _Optional[float] = ..., auto: _Optional[bool] = ..., epochs: _Optional[int] = ...) -> None: ...

class UnlearningRequest(_message.Message):
    __slots__ = ("request_key", "scope", "mode", "flip", "strength", "forget_samples", "retain_samples", "reference", "received_at", "replaces")
    REQUEST_KEY_FIELD_NUMBER: _ClassVar[int]
    SCOPE_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    FLIP_FIELD_NUMBER: _ClassVar[int]
    STRENGTH_FIELD_NUMBER: _ClassVar[int]
    FORGET_SAMPLES_FIELD_NUMBER: _ClassVar[int]
    RETAIN_SAMPLES_FIELD_NUMBER: _ClassVar[int]
    REFERENCE_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_AT_FIELD_NUMBER: _ClassVar[int]
    REPLACES_FIELD_NUMBER: _ClassVar[int]
    request_key: str
    scope: Scope
    mode: Mode
    flip: Flip
    strength: Strength
    forget_samples: int
    retain_samples: int
    reference: str
    received_at: float
    replaces: str
    def __init__(self, request_key: _Optional[str] = ..., scope: _Optional[_Union[Scope, str]] = ..., mode: _Optional[_Union[Mode, str]] = ..., flip: _Optional[_Union[Flip, str]] = ..., strength: _Optional[_Union[Strength, _Mapping]] = ..., forget_samples: _Optional[int] = ..., retain_samples: _Optional[int] = ..., reference: _Optional[str] = ..., received_at: _Optional[float] = ..., replaces: _Optional[str] = ...) -> None: ...

class TicketStep(_message.Message):
    __slots__ = ("state", "at", "note")
    STATE_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    NOTE_FIELD_NUMBER: _ClassVar[int]
    state: TicketState
    at: float
    note: str
    def __init__(self, state: _Optional[_Union[TicketState, str]] = ..., at: _Optional[float] = ..., note: _Optional[str] = ...) -> None: ...

class EvaluationSums(_message.Message):
    __slots__ = ("samples", "loss_sum", "score_sum", "confidences", "classes")
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    LOSS_SUM_FIELD_NUMBER: _ClassVar[int]
    SCORE_SUM_FIELD_NUMBER: _ClassVar[int]
    CONFIDENCES_FIELD_NUMBER: _ClassVar[int]
    CLASSES_FIELD_NUMBER: _ClassVar[int]
    samples: int
    loss_sum: float
    score_sum: float
    confidences: _containers.RepeatedScalarFieldContainer[int]
    classes: ClassTable
    def __init__(self, samples: _Optional[int] = ..., loss_sum: _Optional[float] = ..., score_sum: _Optional[float] = ..., confidences: _Optional[_Iterable[int]] = ..., classes: _Optional[_Union[ClassTable, _Mapping]] = ...) -> None: ...

class ClassTable(_message.Message):
    __slots__ = ("bins", "sums", "squares")
    BINS_FIELD_NUMBER: _ClassVar[int]
    SUMS_FIELD_NUMBER: _ClassVar[int]
    SQUARES_FIELD_NUMBER: _ClassVar[int]
    bins: _containers.RepeatedScalarFieldContainer[int]
    sums: _containers.RepeatedScalarFieldContainer[float]
    squares: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, bins: _Optional[_Iterable[int]] = ..., sums: _Optional[_Iterable[float]] = ..., squares: _Optional[_Iterable[float]] = ...) -> None: ...

class MembershipAttack(_message.Message):
    __slots__ = ("threshold", "forget_members", "forget_samples", "holdout_members", "holdout_samples")
    THRESHOLD_FIELD_NUMBER: _ClassVar[int]
    FORGET_MEMBERS_FIELD_NUMBER: _ClassVar[int]
    FORGET_SAMPLES_FIELD_NUMBER: _ClassVar[int]
    HOLDOUT_MEMBERS_FIELD_NUMBER: _ClassVar[int]
    HOLDOUT_SAMPLES_FIELD_NUMBER: _ClassVar[int]
    threshold: float
    forget_members: int
    forget_samples: int
    holdout_members: int
    holdout_samples: int
    def __init__(self, threshold: _Optional[float] = ..., forget_members: _Optional[int] = ..., forget_samples: _Optional[int] = ..., holdout_members: _Optional[int] = ..., holdout_samples: _Optional[int] = ...) -> None: ...

class RetainedSums(_message.Message):
    __slots__ = ("version", "training", "holdout")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    TRAINING_FIELD_NUMBER: _ClassVar[int]
    HOLDOUT_FIELD_NUMBER: _ClassVar[int]
    version: int
    training: EvaluationSums
    holdout: ClassTable
    def __init__(self, version: _Optional[int] = ..., training: _Optional[_Union[EvaluationSums, _Mapping]] = ..., holdout: _Optional[_Union[ClassTable, _Mapping]] = ...) -> None: ...

class RankComparison(_message.Message):
    __slots__ = ("auc", "forget_samples", "unseen_samples")
    AUC_FIELD_NUMBER: _ClassVar[int]
    FORGET_SAMPLES_FIELD_NUMBER: _ClassVar[int]
    UNSEEN_SAMPLES_FIELD_NUMBER: _ClassVar[int]
    auc: float
    forget_samples: int
    unseen_samples: int
    def __init__(self, auc: _Optional[float] = ..., forget_samples: _Optional[int] = ..., unseen_samples: _Optional[int] = ...) -> None: ...

class Measurement(_message.Message):
    __slots__ = ("version", "forget", "holdout", "yeom", "song", "own", "pool", "gap")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    FORGET_FIELD_NUMBER: _ClassVar[int]
    HOLDOUT_FIELD_NUMBER: _ClassVar[int]
    YEOM_FIELD_NUMBER: _ClassVar[int]
    SONG_FIELD_NUMBER: _ClassVar[int]
    OWN_FIELD_NUMBER: _ClassVar[int]
    POOL_FIELD_NUMBER: _ClassVar[int]
    GAP_FIELD_NUMBER: _ClassVar[int]
    version: int
    forget: EvaluationSums
    holdout: EvaluationSums
    yeom: MembershipAttack
    song: MembershipAttack
    own: RankComparison
    pool: RankComparison
    gap: Gap
    def __init__(self, version: _Optional[int] = ..., forget: _Optional[_Union[EvaluationSums, _Mapping]] = ..., holdout: _Optional[_Union[EvaluationSums, _Mapping]] = ..., yeom: _Optional[_Union[MembershipAttack, _Mapping]] = ..., song: _Optional[_Union[MembershipAttack, _Mapping]] = ..., own: _Optional[_Union[RankComparison, _Mapping]] = ..., pool: _Optional[_Union[RankComparison, _Mapping]] = ..., gap: _Optional[_Union[Gap, _Mapping]] = ...) -> None: ...

class Gap(_message.Message):
    __slots__ = ("value", "error")
    VALUE_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    value: float
    error: float
    def __init__(self, value: _Optional[float] = ..., error: _Optional[float] = ...) -> None: ...

class Dose(_message.Message):
    __slots__ = ("round", "kappa", "gap", "score", "hold")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    KAPPA_FIELD_NUMBER: _ClassVar[int]
    GAP_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    HOLD_FIELD_NUMBER: _ClassVar[int]
    round: int
    kappa: float
    gap: Gap
    score: float
    hold: bool
    def __init__(self, round: _Optional[int] = ..., kappa: _Optional[float] = ..., gap: _Optional[_Union[Gap, _Mapping]] = ..., score: _Optional[float] = ..., hold: _Optional[bool] = ...) -> None: ...

class Score(_message.Message):
    __slots__ = ("accuracy", "loss", "samples", "clients")
    ACCURACY_FIELD_NUMBER: _ClassVar[int]
    LOSS_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    CLIENTS_FIELD_NUMBER: _ClassVar[int]
    accuracy: float
    loss: float
    samples: int
    clients: int
    def __init__(self, accuracy: _Optional[float] = ..., loss: _Optional[float] = ..., samples: _Optional[int] = ..., clients: _Optional[int] = ...) -> None: ...

class Ticket(_message.Message):
    __slots__ = ("id", "client", "request", "state", "history", "deadline_at", "applied_round", "scale", "version_before", "version_unlearned", "version_recovered", "recovery_rounds", "recovered", "score_before", "score_unlearned", "score_recovered", "deleted_versions", "method", "worker_alive", "attempts", "membership", "measurements", "retained", "retained_pending", "filed_by", "fallback", "deleted_records", "deleted_bytes", "held", "taken_over", "doses", "fixed_because", "recovery_end", "escalated", "verdict", "fraction_left", "unlearned_samples", "unlearned_digest", "took_over")
    ID_FIELD_NUMBER: _ClassVar[int]
    CLIENT_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    HISTORY_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_AT_FIELD_NUMBER: _ClassVar[int]
    APPLIED_ROUND_FIELD_NUMBER: _ClassVar[int]
    SCALE_FIELD_NUMBER: _ClassVar[int]
    VERSION_BEFORE_FIELD_NUMBER: _ClassVar[int]
    VERSION_UNLEARNED_FIELD_NUMBER: _ClassVar[int]
    VERSION_RECOVERED_FIELD_NUMBER: _ClassVar[int]
    RECOVERY_ROUNDS_FIELD_NUMBER: _ClassVar[int]
    RECOVERED_FIELD_NUMBER: _ClassVar[int]
    SCORE_BEFORE_FIELD_NUMBER: _ClassVar[int]
    SCORE_UNLEARNED_FIELD_NUMBER: _ClassVar[int]
    SCORE_RECOVERED_FIELD_NUMBER: _ClassVar[int]
    DELETED_VERSIONS_FIELD_NUMBER: _ClassVar[int]
    METHOD_FIELD_NUMBER: _ClassVar[int]
    WORKER_ALIVE_FIELD_NUMBER: _ClassVar[int]
    ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    MEMBERSHIP_FIELD_NUMBER: _ClassVar[int]
    MEASUREMENTS_FIELD_NUMBER: _ClassVar[int]
    RETAINED_FIELD_NUMBER: _ClassVar[int]
    RETAINED_PENDING_FIELD_NUMBER: _ClassVar[int]
    FILED_BY_FIELD_NUMBER: _ClassVar[int]
    FALLBACK_FIELD_NUMBER: _ClassVar[int]
    DELETED_RECORDS_FIELD_NUMBER: _ClassVar[int]
    DELETED_BYTES_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    TAKEN_OVER_FIELD_NUMBER: _ClassVar[int]
    DOSES_FIELD_NUMBER: _ClassVar[int]
    FIXED_BECAUSE_FIELD_NUMBER: _ClassVar[int]
    RECOVERY_END_FIELD_NUMBER: _ClassVar[int]
    ESCALATED_FIELD_NUMBER: _ClassVar[int]
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    FRACTION_LEFT_FIELD_NUMBER: _ClassVar[int]
    UNLEARNED_SAMPLES_FIELD_NUMBER: _ClassVar[int]
    UNLEARNED_DIGEST_FIELD_NUMBER: _ClassVar[int]
    TOOK_OVER_FIELD_NUMBER: _ClassVar[int]
    id: str
    client: str
    request: UnlearningRequest
    state: TicketState
    history: _containers.RepeatedCompositeFieldContainer[TicketStep]
    deadline_at: float
    applied_round: int
    scale: float
    version_before: int
    version_unlearned: int
    version_recovered: int
    recovery_rounds: int
    recovered: bool
    score_before: Score
    score_unlearned: Score
    score_recovered: Score
    deleted_versions: _containers.RepeatedScalarFieldContainer[int]
    method: str
    worker_alive: bool
    attempts: int
    membership: int
    measurements: _containers.RepeatedCompositeFieldContainer[Measurement]
    retained: _containers.RepeatedCompositeFieldContainer[RetainedSums]
    retained_pending: bool
    filed_by: str
    fallback: str
    deleted_records: int
    deleted_bytes: int
    held: str
    taken_over: str
    doses: _containers.RepeatedCompositeFieldContainer[Dose]
    fixed_because: str
    recovery_end: str
    escalated: str
    verdict: str
    fraction_left: Gap
    unlearned_samples: int
    unlearned_digest: bytes
    took_over: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, id: _Optional[str] = ..., client: _Optional[str] = ..., request: _Optional[_Union[UnlearningRequest, _Mapping]] = ..., state: _Optional[_Union[TicketState, str]] = ..., history: _Optional[_Iterable[_Union[TicketStep, _Mapping]]] = ..., deadline_at: _Optional[float] = ..., applied_round: _Optional[int] = ..., scale: _Optional[float] = ..., version_before: _Optional[int] = ..., version_unlearned: _Optional[int] = ..., version_recovered: _Optional[int] = ..., recovery_rounds: _Optional[int] = ..., recovered: _Optional[bool] = ..., score_before: _Optional[_Union[Score, _Mapping]] = ..., score_unlearned: _Optional[_Union[Score, _Mapping]] = ..., score_recovered: _Optional[_Union[Score, _Mapping]] = ..., deleted_versions: _Optional[_Iterable[int]] = ..., method: _Optional[str] = ..., worker_alive: _Optional[bool] = ..., attempts: _Optional[int] = ..., membership: _Optional[int] = ..., measurements: _Optional[_Iterable[_Union[Measurement, _Mapping]]] = ..., retained: _Optional[_Iterable[_Union[RetainedSums, _Mapping]]] = ..., retained_pending: _Optional[bool] = ..., filed_by: _Optional[str] = ..., fallback: _Optional[str] = ..., deleted_records: _Optional[int] = ..., deleted_bytes: _Optional[int] = ..., held: _Optional[str] = ..., taken_over: _Optional[str] = ..., doses: _Optional[_Iterable[_Union[Dose, _Mapping]]] = ..., fixed_because: _Optional[str] = ..., recovery_end: _Optional[str] = ..., escalated: _Optional[str] = ..., verdict: _Optional[str] = ..., fraction_left: _Optional[_Union[Gap, _Mapping]] = ..., unlearned_samples: _Optional[int] = ..., unlearned_digest: _Optional[bytes] = ..., took_over: _Optional[_Iterable[str]] = ...) -> None: ...
