from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class FunctionKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FUNCTION_KIND_UNSPECIFIED: _ClassVar[FunctionKind]
    FUNCTION_KIND_SCALAR: _ClassVar[FunctionKind]
    FUNCTION_KIND_AGGREGATE: _ClassVar[FunctionKind]
    FUNCTION_KIND_PROCESS: _ClassVar[FunctionKind]

class Execution(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    EXECUTION_UNSPECIFIED: _ClassVar[Execution]
    EXECUTION_ASYNC_ROWS: _ClassVar[Execution]
    EXECUTION_THREADED_ROWS: _ClassVar[Execution]
    EXECUTION_VECTORIZED: _ClassVar[Execution]
    EXECUTION_BATCHED: _ClassVar[Execution]

class NullCall(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    NULL_CALL_UNSPECIFIED: _ClassVar[NullCall]
    NULL_CALL_CALL: _ClassVar[NullCall]
    NULL_CALL_SKIP: _ClassVar[NullCall]
FUNCTION_KIND_UNSPECIFIED: FunctionKind
FUNCTION_KIND_SCALAR: FunctionKind
FUNCTION_KIND_AGGREGATE: FunctionKind
FUNCTION_KIND_PROCESS: FunctionKind
EXECUTION_UNSPECIFIED: Execution
EXECUTION_ASYNC_ROWS: Execution
EXECUTION_THREADED_ROWS: Execution
EXECUTION_VECTORIZED: Execution
EXECUTION_BATCHED: Execution
NULL_CALL_UNSPECIFIED: NullCall
NULL_CALL_CALL: NullCall
NULL_CALL_SKIP: NullCall

class FunctionSpec(_message.Message):
    __slots__ = ("name", "version", "kind", "description", "deterministic", "nulls", "execution", "parameters", "result", "required_parameters", "variadic", "options", "fingerprint", "accumulator", "supports_retracting", "supports_merging", "sees_key", "process", "owner", "returns_rows")
    class OptionsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    DETERMINISTIC_FIELD_NUMBER: _ClassVar[int]
    NULLS_FIELD_NUMBER: _ClassVar[int]
    EXECUTION_FIELD_NUMBER: _ClassVar[int]
    PARAMETERS_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    REQUIRED_PARAMETERS_FIELD_NUMBER: _ClassVar[int]
    VARIADIC_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    ACCUMULATOR_FIELD_NUMBER: _ClassVar[int]
    SUPPORTS_RETRACTING_FIELD_NUMBER: _ClassVar[int]
    SUPPORTS_MERGING_FIELD_NUMBER: _ClassVar[int]
    SEES_KEY_FIELD_NUMBER: _ClassVar[int]
    PROCESS_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    RETURNS_ROWS_FIELD_NUMBER: _ClassVar[int]
    name: str
    version: str
    kind: FunctionKind
    description: str
    deterministic: bool
    nulls: NullCall
    execution: Execution
    parameters: bytes
    result: bytes
    required_parameters: int
    variadic: bool
    options: _containers.ScalarMap[str, str]
    fingerprint: str
    accumulator: bytes
    supports_retracting: bool
    supports_merging: bool
    sees_key: bool
    process: ProcessSignature
    owner: str
    returns_rows: bool
    def __init__(self, name: _Optional[str] = ..., version: _Optional[str] = ..., kind: _Optional[_Union[FunctionKind, str]] = ..., description: _Optional[str] = ..., deterministic: bool = ..., nulls: _Optional[_Union[NullCall, str]] = ..., execution: _Optional[_Union[Execution, str]] = ..., parameters: _Optional[bytes] = ..., result: _Optional[bytes] = ..., required_parameters: _Optional[int] = ..., variadic: bool = ..., options: _Optional[_Mapping[str, str]] = ..., fingerprint: _Optional[str] = ..., accumulator: _Optional[bytes] = ..., supports_retracting: bool = ..., supports_merging: bool = ..., sees_key: bool = ..., process: _Optional[_Union[ProcessSignature, _Mapping]] = ..., owner: _Optional[str] = ..., returns_rows: bool = ...) -> None: ...

class ProcessSignature(_message.Message):
    __slots__ = ("tables", "state", "broadcast_state", "changelog_mode")
    TABLES_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    BROADCAST_STATE_FIELD_NUMBER: _ClassVar[int]
    CHANGELOG_MODE_FIELD_NUMBER: _ClassVar[int]
    tables: _containers.RepeatedCompositeFieldContainer[TableArgument]
    state: bytes
    broadcast_state: bytes
    changelog_mode: ChangelogMode
    def __init__(self, tables: _Optional[_Iterable[_Union[TableArgument, _Mapping]]] = ..., state: _Optional[bytes] = ..., broadcast_state: _Optional[bytes] = ..., changelog_mode: _Optional[_Union[ChangelogMode, _Mapping]] = ...) -> None: ...

class TableArgument(_message.Message):
    __slots__ = ("name", "traits", "row")
    NAME_FIELD_NUMBER: _ClassVar[int]
    TRAITS_FIELD_NUMBER: _ClassVar[int]
    ROW_FIELD_NUMBER: _ClassVar[int]
    name: str
    traits: _containers.RepeatedScalarFieldContainer[str]
    row: bytes
    def __init__(self, name: _Optional[str] = ..., traits: _Optional[_Iterable[str]] = ..., row: _Optional[bytes] = ...) -> None: ...

class ChangelogMode(_message.Message):
    __slots__ = ("kinds", "key_only_deletes")
    KINDS_FIELD_NUMBER: _ClassVar[int]
    KEY_ONLY_DELETES_FIELD_NUMBER: _ClassVar[int]
    kinds: _containers.RepeatedScalarFieldContainer[int]
    key_only_deletes: bool
    def __init__(self, kinds: _Optional[_Iterable[int]] = ..., key_only_deletes: bool = ...) -> None: ...
