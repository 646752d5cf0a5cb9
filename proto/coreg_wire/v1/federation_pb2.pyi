from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Vector(_message.Message):
    __slots__ = ("rows", "columns", "data")
    ROWS_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    rows: int
    columns: int
    data: bytes
    def __init__(self, rows: _Optional[int] = ..., columns: _Optional[int] = ..., data: _Optional[bytes] = ...) -> None: ...

class Chunk(_message.Message):
    __slots__ = ("data", "run")
    DATA_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    run: str
    def __init__(self, data: _Optional[bytes] = ..., run: _Optional[str] = ...) -> None: ...

class SiteFrame(_message.Message):
    __slots__ = ("message", "chunk")
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    message: FromSite
    chunk: Chunk
    def __init__(self, message: _Optional[_Union[FromSite, _Mapping]] = ..., chunk: _Optional[_Union[Chunk, _Mapping]] = ...) -> None: ...

class FromSite(_message.Message):
    __slots__ = ("hello", "plan_accepted", "plan_refused", "prediction", "fault", "leaving", "fetched", "share", "masked")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    PLAN_ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    PLAN_REFUSED_FIELD_NUMBER: _ClassVar[int]
    PREDICTION_FIELD_NUMBER: _ClassVar[int]
    FAULT_FIELD_NUMBER: _ClassVar[int]
    LEAVING_FIELD_NUMBER: _ClassVar[int]
    FETCHED_FIELD_NUMBER: _ClassVar[int]
    SHARE_FIELD_NUMBER: _ClassVar[int]
    MASKED_FIELD_NUMBER: _ClassVar[int]
    hello: Hello
    plan_accepted: PlanAccepted
    plan_refused: PlanRefused
    prediction: Prediction
    fault: Fault
    leaving: Leaving
    fetched: Fetched
    share: Share
    masked: Masked
    def __init__(self, hello: _Optional[_Union[Hello, _Mapping]] = ..., plan_accepted: _Optional[_Union[PlanAccepted, _Mapping]] = ..., plan_refused: _Optional[_Union[PlanRefused, _Mapping]] = ..., prediction: _Optional[_Union[Prediction, _Mapping]] = ..., fault: _Optional[_Union[Fault, _Mapping]] = ..., leaving: _Optional[_Union[Leaving, _Mapping]] = ..., fetched: _Optional[_Union[Fetched, _Mapping]] = ..., share: _Optional[_Union[Share, _Mapping]] = ..., masked: _Optional[_Union[Masked, _Mapping]] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("site", "protocol", "release")
    SITE_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    RELEASE_FIELD_NUMBER: _ClassVar[int]
    site: str
    protocol: int
    release: str
    def __init__(self, site: _Optional[str] = ..., protocol: _Optional[int] = ..., release: _Optional[str] = ...) -> None: ...

class PlanAccepted(_message.Message):
    __slots__ = ("run", "plan_digest", "data_digest", "bound", "squared_norm", "threads", "n_unlabelled", "ids_digest", "rounding", "n_labelled", "reach", "key", "signature", "identity")
    RUN_FIELD_NUMBER: _ClassVar[int]
    PLAN_DIGEST_FIELD_NUMBER: _ClassVar[int]
    DATA_DIGEST_FIELD_NUMBER: _ClassVar[int]
    BOUND_FIELD_NUMBER: _ClassVar[int]
    SQUARED_NORM_FIELD_NUMBER: _ClassVar[int]
    THREADS_FIELD_NUMBER: _ClassVar[int]
    N_UNLABELLED_FIELD_NUMBER: _ClassVar[int]
    IDS_DIGEST_FIELD_NUMBER: _ClassVar[int]
    ROUNDING_FIELD_NUMBER: _ClassVar[int]
    N_LABELLED_FIELD_NUMBER: _ClassVar[int]
    REACH_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    IDENTITY_FIELD_NUMBER: _ClassVar[int]
    run: str
    plan_digest: str
    data_digest: str
    bound: float
    squared_norm: float
    threads: int
    n_unlabelled: int
    ids_digest: str
    rounding: float
    n_labelled: int
    reach: int
    key: str
    signature: str
    identity: str
    def __init__(self, run: _Optional[str] = ..., plan_digest: _Optional[str] = ..., data_digest: _Optional[str] = ..., bound: _Optional[float] = ..., squared_norm: _Optional[float] = ..., threads: _Optional[int] = ..., n_unlabelled: _Optional[int] = ..., ids_digest: _Optional[str] = ..., rounding: _Optional[float] = ..., n_labelled: _Optional[int] = ..., reach: _Optional[int] = ..., key: _Optional[str] = ..., signature: _Optional[str] = ..., identity: _Optional[str] = ...) -> None: ...

class PlanRefused(_message.Message):
    __slots__ = ("run", "reason")
    RUN_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    run: str
    reason: str
    def __init__(self, run: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class Prediction(_message.Message):
    __slots__ = ("run", "question", "attempt", "values")
    RUN_FIELD_NUMBER: _ClassVar[int]
    QUESTION_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    run: str
    question: int
    attempt: int
    values: Vector
    def __init__(self, run: _Optional[str] = ..., question: _Optional[int] = ..., attempt: _Optional[int] = ..., values: _Optional[_Union[Vector, _Mapping]] = ...) -> None: ...

class Share(_message.Message):
    __slots__ = ("run", "question", "attempt", "scalars", "values")
    RUN_FIELD_NUMBER: _ClassVar[int]
    QUESTION_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    SCALARS_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    run: str
    question: int
    attempt: int
    scalars: _containers.RepeatedScalarFieldContainer[float]
    values: Vector
    def __init__(self, run: _Optional[str] = ..., question: _Optional[int] = ..., attempt: _Optional[int] = ..., scalars: _Optional[_Iterable[float]] = ..., values: _Optional[_Union[Vector, _Mapping]] = ...) -> None: ...

class Masked(_message.Message):
    __slots__ = ("run", "question", "attempt", "words")
    RUN_FIELD_NUMBER: _ClassVar[int]
    QUESTION_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    WORDS_FIELD_NUMBER: _ClassVar[int]
    run: str
    question: int
    attempt: int
    words: Vector
    def __init__(self, run: _Optional[str] = ..., question: _Optional[int] = ..., attempt: _Optional[int] = ..., words: _Optional[_Union[Vector, _Mapping]] = ...) -> None: ...

class Fault(_message.Message):
    __slots__ = ("run", "question", "attempt", "reason")
    RUN_FIELD_NUMBER: _ClassVar[int]
    QUESTION_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    run: str
    question: int
    attempt: int
    reason: str
    def __init__(self, run: _Optional[str] = ..., question: _Optional[int] = ..., attempt: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class Fetched(_message.Message):
    __slots__ = ("run", "head", "signature")
    RUN_FIELD_NUMBER: _ClassVar[int]
    HEAD_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    run: str
    head: Head
    signature: str
    def __init__(self, run: _Optional[str] = ..., head: _Optional[_Union[Head, _Mapping]] = ..., signature: _Optional[str] = ...) -> None: ...

class Head(_message.Message):
    __slots__ = ("lines", "last", "at")
    LINES_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    lines: int
    last: str
    at: str
    def __init__(self, lines: _Optional[int] = ..., last: _Optional[str] = ..., at: _Optional[str] = ...) -> None: ...

class Leaving(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...

class CoordinatorFrame(_message.Message):
    __slots__ = ("message", "chunk")
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    message: ToSite
    chunk: Chunk
    def __init__(self, message: _Optional[_Union[ToSite, _Mapping]] = ..., chunk: _Optional[_Union[Chunk, _Mapping]] = ...) -> None: ...

class ToSite(_message.Message):
    __slots__ = ("plan", "ask", "finished", "rejected", "dismissed", "inquiry", "roster", "countersigned")
    PLAN_FIELD_NUMBER: _ClassVar[int]
    ASK_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    REJECTED_FIELD_NUMBER: _ClassVar[int]
    DISMISSED_FIELD_NUMBER: _ClassVar[int]
    INQUIRY_FIELD_NUMBER: _ClassVar[int]
    ROSTER_FIELD_NUMBER: _ClassVar[int]
    COUNTERSIGNED_FIELD_NUMBER: _ClassVar[int]
    plan: Plan
    ask: Ask
    finished: Finished
    rejected: Rejected
    dismissed: Dismissed
    inquiry: Inquiry
    roster: Roster
    countersigned: Countersigned
    def __init__(self, plan: _Optional[_Union[Plan, _Mapping]] = ..., ask: _Optional[_Union[Ask, _Mapping]] = ..., finished: _Optional[_Union[Finished, _Mapping]] = ..., rejected: _Optional[_Union[Rejected, _Mapping]] = ..., dismissed: _Optional[_Union[Dismissed, _Mapping]] = ..., inquiry: _Optional[_Union[Inquiry, _Mapping]] = ..., roster: _Optional[_Union[Roster, _Mapping]] = ..., countersigned: _Optional[_Union[Countersigned, _Mapping]] = ...) -> None: ...

class RuleOrValue(_message.Message):
    __slots__ = ("rule", "value")
    RULE_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    rule: str
    value: float
    def __init__(self, rule: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...

class Plan(_message.Message):
    __slots__ = ("run", "federation", "membership", "agreement", "additive", "scoring", "iteration", "privacy", "study", "data")
    RUN_FIELD_NUMBER: _ClassVar[int]
    FEDERATION_FIELD_NUMBER: _ClassVar[int]
    MEMBERSHIP_FIELD_NUMBER: _ClassVar[int]
    AGREEMENT_FIELD_NUMBER: _ClassVar[int]
    ADDITIVE_FIELD_NUMBER: _ClassVar[int]
    SCORING_FIELD_NUMBER: _ClassVar[int]
    ITERATION_FIELD_NUMBER: _ClassVar[int]
    PRIVACY_FIELD_NUMBER: _ClassVar[int]
    STUDY_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    run: str
    federation: str
    membership: Membership
    agreement: Agreement
    additive: Additive
    scoring: Scoring
    iteration: Iteration
    privacy: Privacy
    study: str
    data: str
    def __init__(self, run: _Optional[str] = ..., federation: _Optional[str] = ..., membership: _Optional[_Union[Membership, _Mapping]] = ..., agreement: _Optional[_Union[Agreement, _Mapping]] = ..., additive: _Optional[_Union[Additive, _Mapping]] = ..., scoring: _Optional[_Union[Scoring, _Mapping]] = ..., iteration: _Optional[_Union[Iteration, _Mapping]] = ..., privacy: _Optional[_Union[Privacy, _Mapping]] = ..., study: _Optional[str] = ..., data: _Optional[str] = ...) -> None: ...

class Agreement(_message.Message):
    __slots__ = ("form", "kernel", "bandwidth", "ridge", "degree", "offset", "landmarks", "seed", "coupling", "label_units", "relative")
    FORM_FIELD_NUMBER: _ClassVar[int]
    KERNEL_FIELD_NUMBER: _ClassVar[int]
    BANDWIDTH_FIELD_NUMBER: _ClassVar[int]
    RIDGE_FIELD_NUMBER: _ClassVar[int]
    DEGREE_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    LANDMARKS_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    COUPLING_FIELD_NUMBER: _ClassVar[int]
    LABEL_UNITS_FIELD_NUMBER: _ClassVar[int]
    RELATIVE_FIELD_NUMBER: _ClassVar[int]
    form: str
    kernel: str
    bandwidth: RuleOrValue
    ridge: RuleOrValue
    degree: int
    offset: float
    landmarks: int
    seed: int
    coupling: _containers.RepeatedScalarFieldContainer[float]
    label_units: str
    relative: bool
    def __init__(self, form: _Optional[str] = ..., kernel: _Optional[str] = ..., bandwidth: _Optional[_Union[RuleOrValue, _Mapping]] = ..., ridge: _Optional[_Union[RuleOrValue, _Mapping]] = ..., degree: _Optional[int] = ..., offset: _Optional[float] = ..., landmarks: _Optional[int] = ..., seed: _Optional[int] = ..., coupling: _Optional[_Iterable[float]] = ..., label_units: _Optional[str] = ..., relative: _Optional[bool] = ...) -> None: ...

class Scoring(_message.Message):
    __slots__ = ("of_run", "trained", "missing_instances", "receivers", "batches")
    OF_RUN_FIELD_NUMBER: _ClassVar[int]
    TRAINED_FIELD_NUMBER: _ClassVar[int]
    MISSING_INSTANCES_FIELD_NUMBER: _ClassVar[int]
    RECEIVERS_FIELD_NUMBER: _ClassVar[int]
    BATCHES_FIELD_NUMBER: _ClassVar[int]
    of_run: str
    trained: str
    missing_instances: str
    receivers: _containers.RepeatedScalarFieldContainer[str]
    batches: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, of_run: _Optional[str] = ..., trained: _Optional[str] = ..., missing_instances: _Optional[str] = ..., receivers: _Optional[_Iterable[str]] = ..., batches: _Optional[_Iterable[str]] = ...) -> None: ...

class Additive(_message.Message):
    __slots__ = ("kernel", "bandwidth", "ridge", "degree", "offset", "landmarks", "seed", "targets", "rows", "residuals", "group_size", "intercept_prior", "tuning_steps", "probes", "tolerance", "final_tolerance", "folds", "max_rounds", "memory", "forecast", "operator_norm_bound")
    KERNEL_FIELD_NUMBER: _ClassVar[int]
    BANDWIDTH_FIELD_NUMBER: _ClassVar[int]
    RIDGE_FIELD_NUMBER: _ClassVar[int]
    DEGREE_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    LANDMARKS_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    TARGETS_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    RESIDUALS_FIELD_NUMBER: _ClassVar[int]
    GROUP_SIZE_FIELD_NUMBER: _ClassVar[int]
    INTERCEPT_PRIOR_FIELD_NUMBER: _ClassVar[int]
    TUNING_STEPS_FIELD_NUMBER: _ClassVar[int]
    PROBES_FIELD_NUMBER: _ClassVar[int]
    TOLERANCE_FIELD_NUMBER: _ClassVar[int]
    FINAL_TOLERANCE_FIELD_NUMBER: _ClassVar[int]
    FOLDS_FIELD_NUMBER: _ClassVar[int]
    MAX_ROUNDS_FIELD_NUMBER: _ClassVar[int]
    MEMORY_FIELD_NUMBER: _ClassVar[int]
    FORECAST_FIELD_NUMBER: _ClassVar[int]
    OPERATOR_NORM_BOUND_FIELD_NUMBER: _ClassVar[int]
    kernel: str
    bandwidth: RuleOrValue
    ridge: RuleOrValue
    degree: int
    offset: float
    landmarks: int
    seed: int
    targets: str
    rows: str
    residuals: str
    group_size: int
    intercept_prior: float
    tuning_steps: int
    probes: int
    tolerance: float
    final_tolerance: float
    folds: int
    max_rounds: int
    memory: int
    forecast: bool
    operator_norm_bound: float
    def __init__(self, kernel: _Optional[str] = ..., bandwidth: _Optional[_Union[RuleOrValue, _Mapping]] = ..., ridge: _Optional[_Union[RuleOrValue, _Mapping]] = ..., degree: _Optional[int] = ..., offset: _Optional[float] = ..., landmarks: _Optional[int] = ..., seed: _Optional[int] = ..., targets: _Optional[str] = ..., rows: _Optional[str] = ..., residuals: _Optional[str] = ..., group_size: _Optional[int] = ..., intercept_prior: _Optional[float] = ..., tuning_steps: _Optional[int] = ..., probes: _Optional[int] = ..., tolerance: _Optional[float] = ..., final_tolerance: _Optional[float] = ..., folds: _Optional[int] = ..., max_rounds: _Optional[int] = ..., memory: _Optional[int] = ..., forecast: _Optional[bool] = ..., operator_norm_bound: _Optional[float] = ...) -> None: ...

class Iteration(_message.Message):
    __slots__ = ("name", "tolerance", "prediction_tolerance", "max_rounds", "threads")
    NAME_FIELD_NUMBER: _ClassVar[int]
    TOLERANCE_FIELD_NUMBER: _ClassVar[int]
    PREDICTION_TOLERANCE_FIELD_NUMBER: _ClassVar[int]
    MAX_ROUNDS_FIELD_NUMBER: _ClassVar[int]
    THREADS_FIELD_NUMBER: _ClassVar[int]
    name: str
    tolerance: float
    prediction_tolerance: float
    max_rounds: int
    threads: int
    def __init__(self, name: _Optional[str] = ..., tolerance: _Optional[float] = ..., prediction_tolerance: _Optional[float] = ..., max_rounds: _Optional[int] = ..., threads: _Optional[int] = ...) -> None: ...

class Membership(_message.Message):
    __slots__ = ("sites", "min_sites", "on_dropout", "max_rejoins")
    SITES_FIELD_NUMBER: _ClassVar[int]
    MIN_SITES_FIELD_NUMBER: _ClassVar[int]
    ON_DROPOUT_FIELD_NUMBER: _ClassVar[int]
    MAX_REJOINS_FIELD_NUMBER: _ClassVar[int]
    sites: _containers.RepeatedScalarFieldContainer[str]
    min_sites: int
    on_dropout: str
    max_rejoins: int
    def __init__(self, sites: _Optional[_Iterable[str]] = ..., min_sites: _Optional[int] = ..., on_dropout: _Optional[str] = ..., max_rejoins: _Optional[int] = ...) -> None: ...

class Privacy(_message.Message):
    __slots__ = ("bound", "aggregation", "membership_changes")
    BOUND_FIELD_NUMBER: _ClassVar[int]
    AGGREGATION_FIELD_NUMBER: _ClassVar[int]
    MEMBERSHIP_CHANGES_FIELD_NUMBER: _ClassVar[int]
    bound: str
    aggregation: str
    membership_changes: bool
    def __init__(self, bound: _Optional[str] = ..., aggregation: _Optional[str] = ..., membership_changes: _Optional[bool] = ...) -> None: ...

class Column(_message.Message):
    __slots__ = ("coupling", "weight")
    COUPLING_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    coupling: float
    weight: float
    def __init__(self, coupling: _Optional[float] = ..., weight: _Optional[float] = ...) -> None: ...

class Participant(_message.Message):
    __slots__ = ("site", "key", "signature", "identity")
    SITE_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    IDENTITY_FIELD_NUMBER: _ClassVar[int]
    site: str
    key: str
    signature: str
    identity: str
    def __init__(self, site: _Optional[str] = ..., key: _Optional[str] = ..., signature: _Optional[str] = ..., identity: _Optional[str] = ...) -> None: ...

class Roster(_message.Message):
    __slots__ = ("run", "attempt", "participants")
    RUN_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    PARTICIPANTS_FIELD_NUMBER: _ClassVar[int]
    run: str
    attempt: int
    participants: _containers.RepeatedCompositeFieldContainer[Participant]
    def __init__(self, run: _Optional[str] = ..., attempt: _Optional[int] = ..., participants: _Optional[_Iterable[_Union[Participant, _Mapping]]] = ...) -> None: ...

class Ask(_message.Message):
    __slots__ = ("run", "question", "attempt", "part", "columns", "targets", "is_candidate", "exponents")
    RUN_FIELD_NUMBER: _ClassVar[int]
    QUESTION_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    TARGETS_FIELD_NUMBER: _ClassVar[int]
    IS_CANDIDATE_FIELD_NUMBER: _ClassVar[int]
    EXPONENTS_FIELD_NUMBER: _ClassVar[int]
    run: str
    question: int
    attempt: int
    part: str
    columns: _containers.RepeatedCompositeFieldContainer[Column]
    targets: Vector
    is_candidate: bool
    exponents: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, run: _Optional[str] = ..., question: _Optional[int] = ..., attempt: _Optional[int] = ..., part: _Optional[str] = ..., columns: _Optional[_Iterable[_Union[Column, _Mapping]]] = ..., targets: _Optional[_Union[Vector, _Mapping]] = ..., is_candidate: _Optional[bool] = ..., exponents: _Optional[_Iterable[int]] = ...) -> None: ...

class Operator(_message.Message):
    __slots__ = ("fold", "refit", "noise", "prior")
    FOLD_FIELD_NUMBER: _ClassVar[int]
    REFIT_FIELD_NUMBER: _ClassVar[int]
    NOISE_FIELD_NUMBER: _ClassVar[int]
    PRIOR_FIELD_NUMBER: _ClassVar[int]
    fold: int
    refit: bool
    noise: float
    prior: float
    def __init__(self, fold: _Optional[int] = ..., refit: _Optional[bool] = ..., noise: _Optional[float] = ..., prior: _Optional[float] = ...) -> None: ...

class InquiryColumn(_message.Message):
    __slots__ = ("kind", "probe", "operator")
    KIND_FIELD_NUMBER: _ClassVar[int]
    PROBE_FIELD_NUMBER: _ClassVar[int]
    OPERATOR_FIELD_NUMBER: _ClassVar[int]
    kind: str
    probe: int
    operator: Operator
    def __init__(self, kind: _Optional[str] = ..., probe: _Optional[int] = ..., operator: _Optional[_Union[Operator, _Mapping]] = ...) -> None: ...

class Inquiry(_message.Message):
    __slots__ = ("run", "question", "attempt", "kind", "part", "step", "columns", "scalars", "targets", "exponents")
    RUN_FIELD_NUMBER: _ClassVar[int]
    QUESTION_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    SCALARS_FIELD_NUMBER: _ClassVar[int]
    TARGETS_FIELD_NUMBER: _ClassVar[int]
    EXPONENTS_FIELD_NUMBER: _ClassVar[int]
    run: str
    question: int
    attempt: int
    kind: str
    part: str
    step: int
    columns: _containers.RepeatedCompositeFieldContainer[InquiryColumn]
    scalars: _containers.RepeatedScalarFieldContainer[float]
    targets: Vector
    exponents: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, run: _Optional[str] = ..., question: _Optional[int] = ..., attempt: _Optional[int] = ..., kind: _Optional[str] = ..., part: _Optional[str] = ..., step: _Optional[int] = ..., columns: _Optional[_Iterable[_Union[InquiryColumn, _Mapping]]] = ..., scalars: _Optional[_Iterable[float]] = ..., targets: _Optional[_Union[Vector, _Mapping]] = ..., exponents: _Optional[_Iterable[int]] = ...) -> None: ...

class Finished(_message.Message):
    __slots__ = ("run", "outcome", "reason", "columns", "targets", "forecast")
    RUN_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    TARGETS_FIELD_NUMBER: _ClassVar[int]
    FORECAST_FIELD_NUMBER: _ClassVar[int]
    run: str
    outcome: str
    reason: str
    columns: _containers.RepeatedCompositeFieldContainer[Column]
    targets: Vector
    forecast: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, run: _Optional[str] = ..., outcome: _Optional[str] = ..., reason: _Optional[str] = ..., columns: _Optional[_Iterable[_Union[Column, _Mapping]]] = ..., targets: _Optional[_Union[Vector, _Mapping]] = ..., forecast: _Optional[_Iterable[float]] = ...) -> None: ...

class Countersigned(_message.Message):
    __slots__ = ("run", "head", "at", "signature", "certificate", "reason")
    RUN_FIELD_NUMBER: _ClassVar[int]
    HEAD_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    CERTIFICATE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    run: str
    head: Head
    at: str
    signature: str
    certificate: str
    reason: str
    def __init__(self, run: _Optional[str] = ..., head: _Optional[_Union[Head, _Mapping]] = ..., at: _Optional[str] = ..., signature: _Optional[str] = ..., certificate: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class Dismissed(_message.Message):
    __slots__ = ("run", "outcome", "reason")
    RUN_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    run: str
    outcome: str
    reason: str
    def __init__(self, run: _Optional[str] = ..., outcome: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class Rejected(_message.Message):
    __slots__ = ("reason", "final")
    REASON_FIELD_NUMBER: _ClassVar[int]
    FINAL_FIELD_NUMBER: _ClassVar[int]
    reason: str
    final: bool
    def __init__(self, reason: _Optional[str] = ..., final: _Optional[bool] = ...) -> None: ...
