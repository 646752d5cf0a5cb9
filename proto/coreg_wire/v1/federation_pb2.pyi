from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Payload(_message.Message):
    __slots__ = ("size", "data")
    SIZE_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    size: int
    data: bytes
    def __init__(self, size: _Optional[int] = ..., data: _Optional[bytes] = ...) -> None: ...

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
    __slots__ = ("hello", "plan_refused", "fault", "leaving", "fetched", "offer", "answer", "approval", "unaligned", "wanted")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    PLAN_REFUSED_FIELD_NUMBER: _ClassVar[int]
    FAULT_FIELD_NUMBER: _ClassVar[int]
    LEAVING_FIELD_NUMBER: _ClassVar[int]
    FETCHED_FIELD_NUMBER: _ClassVar[int]
    OFFER_FIELD_NUMBER: _ClassVar[int]
    ANSWER_FIELD_NUMBER: _ClassVar[int]
    APPROVAL_FIELD_NUMBER: _ClassVar[int]
    UNALIGNED_FIELD_NUMBER: _ClassVar[int]
    WANTED_FIELD_NUMBER: _ClassVar[int]
    hello: Hello
    plan_refused: PlanRefused
    fault: Fault
    leaving: Leaving
    fetched: Fetched
    offer: Offer
    answer: Answer
    approval: Approval
    unaligned: Unaligned
    wanted: Wanted
    def __init__(self, hello: _Optional[_Union[Hello, _Mapping]] = ..., plan_refused: _Optional[_Union[PlanRefused, _Mapping]] = ..., fault: _Optional[_Union[Fault, _Mapping]] = ..., leaving: _Optional[_Union[Leaving, _Mapping]] = ..., fetched: _Optional[_Union[Fetched, _Mapping]] = ..., offer: _Optional[_Union[Offer, _Mapping]] = ..., answer: _Optional[_Union[Answer, _Mapping]] = ..., approval: _Optional[_Union[Approval, _Mapping]] = ..., unaligned: _Optional[_Union[Unaligned, _Mapping]] = ..., wanted: _Optional[_Union[Wanted, _Mapping]] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("site", "protocol", "release", "runs", "plans")
    SITE_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    RELEASE_FIELD_NUMBER: _ClassVar[int]
    RUNS_FIELD_NUMBER: _ClassVar[int]
    PLANS_FIELD_NUMBER: _ClassVar[int]
    site: str
    protocol: int
    release: str
    runs: _containers.RepeatedScalarFieldContainer[str]
    plans: int
    def __init__(self, site: _Optional[str] = ..., protocol: _Optional[int] = ..., release: _Optional[str] = ..., runs: _Optional[_Iterable[str]] = ..., plans: _Optional[int] = ...) -> None: ...

class Offer(_message.Message):
    __slots__ = ("run", "attempt", "plan_digest", "site", "n_unlabelled", "ids_digest", "data_digest", "key", "release", "identity", "signature")
    RUN_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    PLAN_DIGEST_FIELD_NUMBER: _ClassVar[int]
    SITE_FIELD_NUMBER: _ClassVar[int]
    N_UNLABELLED_FIELD_NUMBER: _ClassVar[int]
    IDS_DIGEST_FIELD_NUMBER: _ClassVar[int]
    DATA_DIGEST_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    RELEASE_FIELD_NUMBER: _ClassVar[int]
    IDENTITY_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    run: str
    attempt: int
    plan_digest: str
    site: str
    n_unlabelled: int
    ids_digest: str
    data_digest: str
    key: str
    release: str
    identity: str
    signature: str
    def __init__(self, run: _Optional[str] = ..., attempt: _Optional[int] = ..., plan_digest: _Optional[str] = ..., site: _Optional[str] = ..., n_unlabelled: _Optional[int] = ..., ids_digest: _Optional[str] = ..., data_digest: _Optional[str] = ..., key: _Optional[str] = ..., release: _Optional[str] = ..., identity: _Optional[str] = ..., signature: _Optional[str] = ...) -> None: ...

class PlanRefused(_message.Message):
    __slots__ = ("run", "reason", "for_now")
    RUN_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    FOR_NOW_FIELD_NUMBER: _ClassVar[int]
    run: str
    reason: str
    for_now: bool
    def __init__(self, run: _Optional[str] = ..., reason: _Optional[str] = ..., for_now: _Optional[bool] = ...) -> None: ...

class Approval(_message.Message):
    __slots__ = ("run", "given")
    RUN_FIELD_NUMBER: _ClassVar[int]
    GIVEN_FIELD_NUMBER: _ClassVar[int]
    run: str
    given: bool
    def __init__(self, run: _Optional[str] = ..., given: _Optional[bool] = ...) -> None: ...

class Unaligned(_message.Message):
    __slots__ = ("run",)
    RUN_FIELD_NUMBER: _ClassVar[int]
    run: str
    def __init__(self, run: _Optional[str] = ...) -> None: ...

class Wanted(_message.Message):
    __slots__ = ("study",)
    STUDY_FIELD_NUMBER: _ClassVar[int]
    study: str
    def __init__(self, study: _Optional[str] = ...) -> None: ...

class Part(_message.Message):
    __slots__ = ("sender", "receiver", "data")
    SENDER_FIELD_NUMBER: _ClassVar[int]
    RECEIVER_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    sender: str
    receiver: str
    data: Payload
    def __init__(self, sender: _Optional[str] = ..., receiver: _Optional[str] = ..., data: _Optional[_Union[Payload, _Mapping]] = ...) -> None: ...

class Report(_message.Message):
    __slots__ = ("round", "question", "asked", "verified", "residual", "gap", "outcome", "reason")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    QUESTION_FIELD_NUMBER: _ClassVar[int]
    ASKED_FIELD_NUMBER: _ClassVar[int]
    VERIFIED_FIELD_NUMBER: _ClassVar[int]
    RESIDUAL_FIELD_NUMBER: _ClassVar[int]
    GAP_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    round: int
    question: str
    asked: str
    verified: bool
    residual: _containers.RepeatedScalarFieldContainer[float]
    gap: _containers.RepeatedScalarFieldContainer[float]
    outcome: str
    reason: str
    def __init__(self, round: _Optional[int] = ..., question: _Optional[str] = ..., asked: _Optional[str] = ..., verified: _Optional[bool] = ..., residual: _Optional[_Iterable[float]] = ..., gap: _Optional[_Iterable[float]] = ..., outcome: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class Answer(_message.Message):
    __slots__ = ("run", "attempt", "step", "report", "summed", "parts")
    RUN_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    REPORT_FIELD_NUMBER: _ClassVar[int]
    SUMMED_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    run: str
    attempt: int
    step: int
    report: Report
    summed: Payload
    parts: _containers.RepeatedCompositeFieldContainer[Part]
    def __init__(self, run: _Optional[str] = ..., attempt: _Optional[int] = ..., step: _Optional[int] = ..., report: _Optional[_Union[Report, _Mapping]] = ..., summed: _Optional[_Union[Payload, _Mapping]] = ..., parts: _Optional[_Iterable[_Union[Part, _Mapping]]] = ...) -> None: ...

class Fault(_message.Message):
    __slots__ = ("run", "attempt", "step", "reason", "received")
    RUN_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_FIELD_NUMBER: _ClassVar[int]
    run: str
    attempt: int
    step: int
    reason: str
    received: bool
    def __init__(self, run: _Optional[str] = ..., attempt: _Optional[int] = ..., step: _Optional[int] = ..., reason: _Optional[str] = ..., received: _Optional[bool] = ...) -> None: ...

class Fetched(_message.Message):
    __slots__ = ("run", "head", "signature")
    RUN_FIELD_NUMBER: _ClassVar[int]
    HEAD_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    run: str
    head: LedgerHead
    signature: str
    def __init__(self, run: _Optional[str] = ..., head: _Optional[_Union[LedgerHead, _Mapping]] = ..., signature: _Optional[str] = ...) -> None: ...

class LedgerHead(_message.Message):
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
    __slots__ = ("finished", "rejected", "dismissed", "countersigned", "proposal", "step", "renewed")
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    REJECTED_FIELD_NUMBER: _ClassVar[int]
    DISMISSED_FIELD_NUMBER: _ClassVar[int]
    COUNTERSIGNED_FIELD_NUMBER: _ClassVar[int]
    PROPOSAL_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    RENEWED_FIELD_NUMBER: _ClassVar[int]
    finished: Finished
    rejected: Rejected
    dismissed: Dismissed
    countersigned: Countersigned
    proposal: Proposal
    step: Step
    renewed: Renewed
    def __init__(self, finished: _Optional[_Union[Finished, _Mapping]] = ..., rejected: _Optional[_Union[Rejected, _Mapping]] = ..., dismissed: _Optional[_Union[Dismissed, _Mapping]] = ..., countersigned: _Optional[_Union[Countersigned, _Mapping]] = ..., proposal: _Optional[_Union[Proposal, _Mapping]] = ..., step: _Optional[_Union[Step, _Mapping]] = ..., renewed: _Optional[_Union[Renewed, _Mapping]] = ...) -> None: ...

class Proposal(_message.Message):
    __slots__ = ("run", "attempt", "plan", "approval", "keys")
    RUN_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    PLAN_FIELD_NUMBER: _ClassVar[int]
    APPROVAL_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    run: str
    attempt: int
    plan: Plan
    approval: float
    keys: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, run: _Optional[str] = ..., attempt: _Optional[int] = ..., plan: _Optional[_Union[Plan, _Mapping]] = ..., approval: _Optional[float] = ..., keys: _Optional[_Iterable[str]] = ...) -> None: ...

class RuleOrValue(_message.Message):
    __slots__ = ("rule", "value")
    RULE_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    rule: str
    value: float
    def __init__(self, rule: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...

class Plan(_message.Message):
    __slots__ = ("run", "federation", "membership", "agreement", "additive", "scoring", "alignment", "iteration", "privacy", "study", "data", "align", "target", "id", "rehearsal")
    RUN_FIELD_NUMBER: _ClassVar[int]
    FEDERATION_FIELD_NUMBER: _ClassVar[int]
    MEMBERSHIP_FIELD_NUMBER: _ClassVar[int]
    AGREEMENT_FIELD_NUMBER: _ClassVar[int]
    ADDITIVE_FIELD_NUMBER: _ClassVar[int]
    SCORING_FIELD_NUMBER: _ClassVar[int]
    ALIGNMENT_FIELD_NUMBER: _ClassVar[int]
    ITERATION_FIELD_NUMBER: _ClassVar[int]
    PRIVACY_FIELD_NUMBER: _ClassVar[int]
    STUDY_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    ALIGN_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    REHEARSAL_FIELD_NUMBER: _ClassVar[int]
    run: str
    federation: str
    membership: Membership
    agreement: Agreement
    additive: Additive
    scoring: Scoring
    alignment: Alignment
    iteration: Iteration
    privacy: Privacy
    study: str
    data: str
    align: Alignment
    target: str
    id: str
    rehearsal: bool
    def __init__(self, run: _Optional[str] = ..., federation: _Optional[str] = ..., membership: _Optional[_Union[Membership, _Mapping]] = ..., agreement: _Optional[_Union[Agreement, _Mapping]] = ..., additive: _Optional[_Union[Additive, _Mapping]] = ..., scoring: _Optional[_Union[Scoring, _Mapping]] = ..., alignment: _Optional[_Union[Alignment, _Mapping]] = ..., iteration: _Optional[_Union[Iteration, _Mapping]] = ..., privacy: _Optional[_Union[Privacy, _Mapping]] = ..., study: _Optional[str] = ..., data: _Optional[str] = ..., align: _Optional[_Union[Alignment, _Mapping]] = ..., target: _Optional[str] = ..., id: _Optional[str] = ..., rehearsal: _Optional[bool] = ...) -> None: ...

class Agreement(_message.Message):
    __slots__ = ("form", "kernel", "bandwidth", "ridge", "landmarks", "seed", "coupling", "label_units")
    FORM_FIELD_NUMBER: _ClassVar[int]
    KERNEL_FIELD_NUMBER: _ClassVar[int]
    BANDWIDTH_FIELD_NUMBER: _ClassVar[int]
    RIDGE_FIELD_NUMBER: _ClassVar[int]
    LANDMARKS_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    COUPLING_FIELD_NUMBER: _ClassVar[int]
    LABEL_UNITS_FIELD_NUMBER: _ClassVar[int]
    form: str
    kernel: str
    bandwidth: RuleOrValue
    ridge: RuleOrValue
    landmarks: int
    seed: int
    coupling: _containers.RepeatedScalarFieldContainer[float]
    label_units: str
    def __init__(self, form: _Optional[str] = ..., kernel: _Optional[str] = ..., bandwidth: _Optional[_Union[RuleOrValue, _Mapping]] = ..., ridge: _Optional[_Union[RuleOrValue, _Mapping]] = ..., landmarks: _Optional[int] = ..., seed: _Optional[int] = ..., coupling: _Optional[_Iterable[float]] = ..., label_units: _Optional[str] = ...) -> None: ...

class Scoring(_message.Message):
    __slots__ = ("of_run", "trained", "receivers", "contributions", "standing", "columns")
    OF_RUN_FIELD_NUMBER: _ClassVar[int]
    TRAINED_FIELD_NUMBER: _ClassVar[int]
    RECEIVERS_FIELD_NUMBER: _ClassVar[int]
    CONTRIBUTIONS_FIELD_NUMBER: _ClassVar[int]
    STANDING_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    of_run: str
    trained: str
    receivers: _containers.RepeatedScalarFieldContainer[str]
    contributions: bool
    standing: bool
    columns: int
    def __init__(self, of_run: _Optional[str] = ..., trained: _Optional[str] = ..., receivers: _Optional[_Iterable[str]] = ..., contributions: _Optional[bool] = ..., standing: _Optional[bool] = ..., columns: _Optional[int] = ...) -> None: ...

class Alignment(_message.Message):
    __slots__ = ("max_ids", "ids")
    MAX_IDS_FIELD_NUMBER: _ClassVar[int]
    IDS_FIELD_NUMBER: _ClassVar[int]
    max_ids: int
    ids: str
    def __init__(self, max_ids: _Optional[int] = ..., ids: _Optional[str] = ...) -> None: ...

class Additive(_message.Message):
    __slots__ = ("kernel", "task", "rows_per_feature", "noise", "label_noise", "least_labels", "least_rows", "share_gain", "label_epsilon", "label_range", "classes")
    KERNEL_FIELD_NUMBER: _ClassVar[int]
    TASK_FIELD_NUMBER: _ClassVar[int]
    ROWS_PER_FEATURE_FIELD_NUMBER: _ClassVar[int]
    NOISE_FIELD_NUMBER: _ClassVar[int]
    LABEL_NOISE_FIELD_NUMBER: _ClassVar[int]
    LEAST_LABELS_FIELD_NUMBER: _ClassVar[int]
    LEAST_ROWS_FIELD_NUMBER: _ClassVar[int]
    SHARE_GAIN_FIELD_NUMBER: _ClassVar[int]
    LABEL_EPSILON_FIELD_NUMBER: _ClassVar[int]
    LABEL_RANGE_FIELD_NUMBER: _ClassVar[int]
    CLASSES_FIELD_NUMBER: _ClassVar[int]
    kernel: str
    task: str
    rows_per_feature: int
    noise: float
    label_noise: float
    least_labels: int
    least_rows: int
    share_gain: bool
    label_epsilon: float
    label_range: _containers.RepeatedScalarFieldContainer[float]
    classes: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, kernel: _Optional[str] = ..., task: _Optional[str] = ..., rows_per_feature: _Optional[int] = ..., noise: _Optional[float] = ..., label_noise: _Optional[float] = ..., least_labels: _Optional[int] = ..., least_rows: _Optional[int] = ..., share_gain: _Optional[bool] = ..., label_epsilon: _Optional[float] = ..., label_range: _Optional[_Iterable[float]] = ..., classes: _Optional[_Iterable[str]] = ...) -> None: ...

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
    __slots__ = ("sites", "min_sites", "on_dropout")
    SITES_FIELD_NUMBER: _ClassVar[int]
    MIN_SITES_FIELD_NUMBER: _ClassVar[int]
    ON_DROPOUT_FIELD_NUMBER: _ClassVar[int]
    sites: _containers.RepeatedScalarFieldContainer[str]
    min_sites: int
    on_dropout: str
    def __init__(self, sites: _Optional[_Iterable[str]] = ..., min_sites: _Optional[int] = ..., on_dropout: _Optional[str] = ...) -> None: ...

class Privacy(_message.Message):
    __slots__ = ("aggregation", "membership_changes")
    AGGREGATION_FIELD_NUMBER: _ClassVar[int]
    MEMBERSHIP_CHANGES_FIELD_NUMBER: _ClassVar[int]
    aggregation: str
    membership_changes: bool
    def __init__(self, aggregation: _Optional[str] = ..., membership_changes: _Optional[bool] = ...) -> None: ...

class Step(_message.Message):
    __slots__ = ("run", "attempt", "step", "roster", "summed", "parts")
    RUN_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    ROSTER_FIELD_NUMBER: _ClassVar[int]
    SUMMED_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    run: str
    attempt: int
    step: int
    roster: _containers.RepeatedCompositeFieldContainer[Offer]
    summed: Payload
    parts: _containers.RepeatedCompositeFieldContainer[Part]
    def __init__(self, run: _Optional[str] = ..., attempt: _Optional[int] = ..., step: _Optional[int] = ..., roster: _Optional[_Iterable[_Union[Offer, _Mapping]]] = ..., summed: _Optional[_Union[Payload, _Mapping]] = ..., parts: _Optional[_Iterable[_Union[Part, _Mapping]]] = ...) -> None: ...

class Finished(_message.Message):
    __slots__ = ("run", "outcome", "reason")
    RUN_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    run: str
    outcome: str
    reason: str
    def __init__(self, run: _Optional[str] = ..., outcome: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class Renewed(_message.Message):
    __slots__ = ("certificate",)
    CERTIFICATE_FIELD_NUMBER: _ClassVar[int]
    certificate: str
    def __init__(self, certificate: _Optional[str] = ...) -> None: ...

class Countersigned(_message.Message):
    __slots__ = ("run", "head", "at", "signature", "certificate", "reason", "site_signature")
    RUN_FIELD_NUMBER: _ClassVar[int]
    HEAD_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    CERTIFICATE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    SITE_SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    run: str
    head: LedgerHead
    at: str
    signature: str
    certificate: str
    reason: str
    site_signature: str
    def __init__(self, run: _Optional[str] = ..., head: _Optional[_Union[LedgerHead, _Mapping]] = ..., at: _Optional[str] = ..., signature: _Optional[str] = ..., certificate: _Optional[str] = ..., reason: _Optional[str] = ..., site_signature: _Optional[str] = ...) -> None: ...

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
