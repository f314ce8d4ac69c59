from google.protobuf import duration_pb2 as _duration_pb2
from remote_udf.v1 import function_pb2 as _function_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class AppliedField(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    APPLIED_FIELD_UNSPECIFIED: _ClassVar[AppliedField]
    APPLIED_FIELD_ACCUMULATOR: _ClassVar[AppliedField]
    APPLIED_FIELD_STARTING_VALUE: _ClassVar[AppliedField]
    APPLIED_FIELD_FINAL_VALUE: _ClassVar[AppliedField]
    APPLIED_FIELD_UPDATED_VALUES_AFTER_EACH_ROW: _ClassVar[AppliedField]
APPLIED_FIELD_UNSPECIFIED: AppliedField
APPLIED_FIELD_ACCUMULATOR: AppliedField
APPLIED_FIELD_STARTING_VALUE: AppliedField
APPLIED_FIELD_FINAL_VALUE: AppliedField
APPLIED_FIELD_UPDATED_VALUES_AFTER_EACH_ROW: AppliedField

class ExecuteRequest(_message.Message):
    __slots__ = ("open", "batch", "finish", "cancel", "shared", "padding", "data")
    OPEN_FIELD_NUMBER: _ClassVar[int]
    BATCH_FIELD_NUMBER: _ClassVar[int]
    FINISH_FIELD_NUMBER: _ClassVar[int]
    CANCEL_FIELD_NUMBER: _ClassVar[int]
    SHARED_FIELD_NUMBER: _ClassVar[int]
    PADDING_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    open: Open
    batch: Batch
    finish: Finish
    cancel: Cancel
    shared: SharedData
    padding: bytes
    data: bytes
    def __init__(self, open: _Optional[_Union[Open, _Mapping]] = ..., batch: _Optional[_Union[Batch, _Mapping]] = ..., finish: _Optional[_Union[Finish, _Mapping]] = ..., cancel: _Optional[_Union[Cancel, _Mapping]] = ..., shared: _Optional[_Union[SharedData, _Mapping]] = ..., padding: _Optional[bytes] = ..., data: _Optional[bytes] = ...) -> None: ...

class ExecuteResponse(_message.Message):
    __slots__ = ("opened", "result", "progress", "finished", "cancelled", "error", "elsewhere", "shared", "padding", "data")
    OPENED_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    CANCELLED_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    ELSEWHERE_FIELD_NUMBER: _ClassVar[int]
    SHARED_FIELD_NUMBER: _ClassVar[int]
    PADDING_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    opened: Opened
    result: Result
    progress: Progress
    finished: Finished
    cancelled: Cancelled
    error: Error
    elsewhere: Elsewhere
    shared: SharedData
    padding: bytes
    data: bytes
    def __init__(self, opened: _Optional[_Union[Opened, _Mapping]] = ..., result: _Optional[_Union[Result, _Mapping]] = ..., progress: _Optional[_Union[Progress, _Mapping]] = ..., finished: _Optional[_Union[Finished, _Mapping]] = ..., cancelled: _Optional[_Union[Cancelled, _Mapping]] = ..., error: _Optional[_Union[Error, _Mapping]] = ..., elsewhere: _Optional[_Union[Elsewhere, _Mapping]] = ..., shared: _Optional[_Union[SharedData, _Mapping]] = ..., padding: _Optional[bytes] = ..., data: _Optional[bytes] = ...) -> None: ...

class Open(_message.Message):
    __slots__ = ("protocol_version", "function", "version", "fingerprint", "arguments", "options", "context", "applied", "process", "shared_memory", "takes_parts", "budget", "estimate", "takes_port", "route")
    class OptionsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    FUNCTION_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    ARGUMENTS_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    APPLIED_FIELD_NUMBER: _ClassVar[int]
    PROCESS_FIELD_NUMBER: _ClassVar[int]
    SHARED_MEMORY_FIELD_NUMBER: _ClassVar[int]
    TAKES_PARTS_FIELD_NUMBER: _ClassVar[int]
    BUDGET_FIELD_NUMBER: _ClassVar[int]
    ESTIMATE_FIELD_NUMBER: _ClassVar[int]
    TAKES_PORT_FIELD_NUMBER: _ClassVar[int]
    ROUTE_FIELD_NUMBER: _ClassVar[int]
    protocol_version: int
    function: str
    version: str
    fingerprint: str
    arguments: bytes
    options: _containers.ScalarMap[str, str]
    context: CallContext
    applied: _containers.RepeatedScalarFieldContainer[AppliedField]
    process: ProcessCall
    shared_memory: SharedMemory
    takes_parts: bool
    budget: Budget
    estimate: bool
    takes_port: bool
    route: str
    def __init__(self, protocol_version: _Optional[int] = ..., function: _Optional[str] = ..., version: _Optional[str] = ..., fingerprint: _Optional[str] = ..., arguments: _Optional[bytes] = ..., options: _Optional[_Mapping[str, str]] = ..., context: _Optional[_Union[CallContext, _Mapping]] = ..., applied: _Optional[_Iterable[_Union[AppliedField, str]]] = ..., process: _Optional[_Union[ProcessCall, _Mapping]] = ..., shared_memory: _Optional[_Union[SharedMemory, _Mapping]] = ..., takes_parts: bool = ..., budget: _Optional[_Union[Budget, _Mapping]] = ..., estimate: bool = ..., takes_port: bool = ..., route: _Optional[str] = ...) -> None: ...

class Elsewhere(_message.Message):
    __slots__ = ("port", "route")
    PORT_FIELD_NUMBER: _ClassVar[int]
    ROUTE_FIELD_NUMBER: _ClassVar[int]
    port: int
    route: str
    def __init__(self, port: _Optional[int] = ..., route: _Optional[str] = ...) -> None: ...

class Budget(_message.Message):
    __slots__ = ("job", "amounts", "error_share")
    class AmountsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    JOB_FIELD_NUMBER: _ClassVar[int]
    AMOUNTS_FIELD_NUMBER: _ClassVar[int]
    ERROR_SHARE_FIELD_NUMBER: _ClassVar[int]
    job: str
    amounts: _containers.ScalarMap[str, float]
    error_share: float
    def __init__(self, job: _Optional[str] = ..., amounts: _Optional[_Mapping[str, float]] = ..., error_share: _Optional[float] = ...) -> None: ...

class SharedMemory(_message.Message):
    __slots__ = ("process", "descriptor", "bytes", "token")
    PROCESS_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTOR_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    process: int
    descriptor: int
    bytes: int
    token: bytes
    def __init__(self, process: _Optional[int] = ..., descriptor: _Optional[int] = ..., bytes: _Optional[int] = ..., token: _Optional[bytes] = ...) -> None: ...

class SharedData(_message.Message):
    __slots__ = ("position", "bytes")
    POSITION_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    position: int
    bytes: int
    def __init__(self, position: _Optional[int] = ..., bytes: _Optional[int] = ...) -> None: ...

class ProcessCall(_message.Message):
    __slots__ = ("tables", "scalars", "on_time", "broadcast", "broadcast_state")
    TABLES_FIELD_NUMBER: _ClassVar[int]
    SCALARS_FIELD_NUMBER: _ClassVar[int]
    ON_TIME_FIELD_NUMBER: _ClassVar[int]
    BROADCAST_FIELD_NUMBER: _ClassVar[int]
    BROADCAST_STATE_FIELD_NUMBER: _ClassVar[int]
    tables: _containers.RepeatedCompositeFieldContainer[TableCall]
    scalars: bytes
    on_time: bool
    broadcast: bool
    broadcast_state: bytes
    def __init__(self, tables: _Optional[_Iterable[_Union[TableCall, _Mapping]]] = ..., scalars: _Optional[bytes] = ..., on_time: bool = ..., broadcast: bool = ..., broadcast_state: _Optional[bytes] = ...) -> None: ...

class TableCall(_message.Message):
    __slots__ = ("schema", "partition_by", "order_by", "time_column", "changelog_mode", "upsert_key")
    SCHEMA_FIELD_NUMBER: _ClassVar[int]
    PARTITION_BY_FIELD_NUMBER: _ClassVar[int]
    ORDER_BY_FIELD_NUMBER: _ClassVar[int]
    TIME_COLUMN_FIELD_NUMBER: _ClassVar[int]
    CHANGELOG_MODE_FIELD_NUMBER: _ClassVar[int]
    UPSERT_KEY_FIELD_NUMBER: _ClassVar[int]
    schema: bytes
    partition_by: _containers.RepeatedScalarFieldContainer[int]
    order_by: _containers.RepeatedCompositeFieldContainer[OrderColumn]
    time_column: int
    changelog_mode: _function_pb2.ChangelogMode
    upsert_key: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, schema: _Optional[bytes] = ..., partition_by: _Optional[_Iterable[int]] = ..., order_by: _Optional[_Iterable[_Union[OrderColumn, _Mapping]]] = ..., time_column: _Optional[int] = ..., changelog_mode: _Optional[_Union[_function_pb2.ChangelogMode, _Mapping]] = ..., upsert_key: _Optional[_Iterable[int]] = ...) -> None: ...

class OrderColumn(_message.Message):
    __slots__ = ("column", "descending", "nulls_last")
    COLUMN_FIELD_NUMBER: _ClassVar[int]
    DESCENDING_FIELD_NUMBER: _ClassVar[int]
    NULLS_LAST_FIELD_NUMBER: _ClassVar[int]
    column: int
    descending: bool
    nulls_last: bool
    def __init__(self, column: _Optional[int] = ..., descending: bool = ..., nulls_last: bool = ...) -> None: ...

class CallContext(_message.Message):
    __slots__ = ("operation_id", "job", "stage", "partition", "task_attempt", "micro_batch", "session", "run")
    OPERATION_ID_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    TASK_ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    MICRO_BATCH_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    operation_id: str
    job: str
    stage: int
    partition: int
    task_attempt: int
    micro_batch: int
    session: str
    run: str
    def __init__(self, operation_id: _Optional[str] = ..., job: _Optional[str] = ..., stage: _Optional[int] = ..., partition: _Optional[int] = ..., task_attempt: _Optional[int] = ..., micro_batch: _Optional[int] = ..., session: _Optional[str] = ..., run: _Optional[str] = ...) -> None: ...

class Opened(_message.Message):
    __slots__ = ("version", "result", "options", "max_message_bytes", "progress_interval", "execution", "shared_memory", "max_batch_rows", "budget", "estimate", "load")
    class OptionsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    VERSION_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    MAX_MESSAGE_BYTES_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_INTERVAL_FIELD_NUMBER: _ClassVar[int]
    EXECUTION_FIELD_NUMBER: _ClassVar[int]
    SHARED_MEMORY_FIELD_NUMBER: _ClassVar[int]
    MAX_BATCH_ROWS_FIELD_NUMBER: _ClassVar[int]
    BUDGET_FIELD_NUMBER: _ClassVar[int]
    ESTIMATE_FIELD_NUMBER: _ClassVar[int]
    LOAD_FIELD_NUMBER: _ClassVar[int]
    version: str
    result: bytes
    options: _containers.ScalarMap[str, str]
    max_message_bytes: int
    progress_interval: _duration_pb2.Duration
    execution: _function_pb2.Execution
    shared_memory: bool
    max_batch_rows: int
    budget: str
    estimate: bool
    load: Load
    def __init__(self, version: _Optional[str] = ..., result: _Optional[bytes] = ..., options: _Optional[_Mapping[str, str]] = ..., max_message_bytes: _Optional[int] = ..., progress_interval: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., execution: _Optional[_Union[_function_pb2.Execution, str]] = ..., shared_memory: bool = ..., max_batch_rows: _Optional[int] = ..., budget: _Optional[str] = ..., estimate: bool = ..., load: _Optional[_Union[Load, _Mapping]] = ...) -> None: ...

class Load(_message.Message):
    __slots__ = ("load", "streams", "cores")
    LOAD_FIELD_NUMBER: _ClassVar[int]
    STREAMS_FIELD_NUMBER: _ClassVar[int]
    CORES_FIELD_NUMBER: _ClassVar[int]
    load: float
    streams: int
    cores: float
    def __init__(self, load: _Optional[float] = ..., streams: _Optional[int] = ..., cores: _Optional[float] = ...) -> None: ...

class Batch(_message.Message):
    __slots__ = ("sequence", "first_row", "rows", "waited")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    FIRST_ROW_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    WAITED_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    first_row: int
    rows: int
    waited: _duration_pb2.Duration
    def __init__(self, sequence: _Optional[int] = ..., first_row: _Optional[int] = ..., rows: _Optional[int] = ..., waited: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class Result(_message.Message):
    __slots__ = ("first_row", "rows", "errors", "skipped", "part", "parts", "calls", "retries", "cache_hits", "cache_misses", "cache_shared", "spent")
    class SpentEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    FIRST_ROW_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    ERRORS_FIELD_NUMBER: _ClassVar[int]
    SKIPPED_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    CALLS_FIELD_NUMBER: _ClassVar[int]
    RETRIES_FIELD_NUMBER: _ClassVar[int]
    CACHE_HITS_FIELD_NUMBER: _ClassVar[int]
    CACHE_MISSES_FIELD_NUMBER: _ClassVar[int]
    CACHE_SHARED_FIELD_NUMBER: _ClassVar[int]
    SPENT_FIELD_NUMBER: _ClassVar[int]
    first_row: int
    rows: int
    errors: bytes
    skipped: int
    part: int
    parts: int
    calls: int
    retries: int
    cache_hits: int
    cache_misses: int
    cache_shared: int
    spent: _containers.ScalarMap[str, float]
    def __init__(self, first_row: _Optional[int] = ..., rows: _Optional[int] = ..., errors: _Optional[bytes] = ..., skipped: _Optional[int] = ..., part: _Optional[int] = ..., parts: _Optional[int] = ..., calls: _Optional[int] = ..., retries: _Optional[int] = ..., cache_hits: _Optional[int] = ..., cache_misses: _Optional[int] = ..., cache_shared: _Optional[int] = ..., spent: _Optional[_Mapping[str, float]] = ...) -> None: ...

class Progress(_message.Message):
    __slots__ = ("rows_done", "draining", "load")
    ROWS_DONE_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    LOAD_FIELD_NUMBER: _ClassVar[int]
    rows_done: int
    draining: bool
    load: Load
    def __init__(self, rows_done: _Optional[int] = ..., draining: bool = ..., load: _Optional[_Union[Load, _Mapping]] = ...) -> None: ...

class Finish(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Cancel(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...

class Finished(_message.Message):
    __slots__ = ("counts", "times")
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    TIMES_FIELD_NUMBER: _ClassVar[int]
    counts: StreamCounts
    times: StreamTimes
    def __init__(self, counts: _Optional[_Union[StreamCounts, _Mapping]] = ..., times: _Optional[_Union[StreamTimes, _Mapping]] = ...) -> None: ...

class Cancelled(_message.Message):
    __slots__ = ("counts",)
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    counts: StreamCounts
    def __init__(self, counts: _Optional[_Union[StreamCounts, _Mapping]] = ...) -> None: ...

class StreamCounts(_message.Message):
    __slots__ = ("rows_in", "rows_ok", "rows_failed", "rows_skipped", "retries", "calls")
    ROWS_IN_FIELD_NUMBER: _ClassVar[int]
    ROWS_OK_FIELD_NUMBER: _ClassVar[int]
    ROWS_FAILED_FIELD_NUMBER: _ClassVar[int]
    ROWS_SKIPPED_FIELD_NUMBER: _ClassVar[int]
    RETRIES_FIELD_NUMBER: _ClassVar[int]
    CALLS_FIELD_NUMBER: _ClassVar[int]
    rows_in: int
    rows_ok: int
    rows_failed: int
    rows_skipped: int
    retries: int
    calls: int
    def __init__(self, rows_in: _Optional[int] = ..., rows_ok: _Optional[int] = ..., rows_failed: _Optional[int] = ..., rows_skipped: _Optional[int] = ..., retries: _Optional[int] = ..., calls: _Optional[int] = ...) -> None: ...

class StreamTimes(_message.Message):
    __slots__ = ("queue", "function")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    FUNCTION_FIELD_NUMBER: _ClassVar[int]
    queue: _duration_pb2.Duration
    function: _duration_pb2.Duration
    def __init__(self, queue: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., function: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class Error(_message.Message):
    __slots__ = ("kind", "code", "message", "traceback", "retryable", "retry_after")
    class Kind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        KIND_UNSPECIFIED: _ClassVar[Error.Kind]
        KIND_USER: _ClassVar[Error.Kind]
        KIND_WORKER: _ClassVar[Error.Kind]
        KIND_PROTOCOL: _ClassVar[Error.Kind]
    KIND_UNSPECIFIED: Error.Kind
    KIND_USER: Error.Kind
    KIND_WORKER: Error.Kind
    KIND_PROTOCOL: Error.Kind
    KIND_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    TRACEBACK_FIELD_NUMBER: _ClassVar[int]
    RETRYABLE_FIELD_NUMBER: _ClassVar[int]
    RETRY_AFTER_FIELD_NUMBER: _ClassVar[int]
    kind: Error.Kind
    code: str
    message: str
    traceback: str
    retryable: bool
    retry_after: _duration_pb2.Duration
    def __init__(self, kind: _Optional[_Union[Error.Kind, str]] = ..., code: _Optional[str] = ..., message: _Optional[str] = ..., traceback: _Optional[str] = ..., retryable: bool = ..., retry_after: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ...) -> None: ...
