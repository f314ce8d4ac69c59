from remote_udf.v1 import function_pb2 as _function_pb2
from remote_udf.v1 import message_pb2 as _message_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class GetProgressRequest(_message.Message):
    __slots__ = ("session",)
    SESSION_FIELD_NUMBER: _ClassVar[int]
    session: str
    def __init__(self, session: _Optional[str] = ...) -> None: ...

class GetProgressResponse(_message.Message):
    __slots__ = ("counts", "rows_unanswered", "partial", "server", "load")
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    ROWS_UNANSWERED_FIELD_NUMBER: _ClassVar[int]
    PARTIAL_FIELD_NUMBER: _ClassVar[int]
    SERVER_FIELD_NUMBER: _ClassVar[int]
    LOAD_FIELD_NUMBER: _ClassVar[int]
    counts: _message_pb2.StreamCounts
    rows_unanswered: int
    partial: bool
    server: str
    load: _message_pb2.Load
    def __init__(self, counts: _Optional[_Union[_message_pb2.StreamCounts, _Mapping]] = ..., rows_unanswered: _Optional[int] = ..., partial: bool = ..., server: _Optional[str] = ..., load: _Optional[_Union[_message_pb2.Load, _Mapping]] = ...) -> None: ...

class ListFunctionsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListFunctionsResponse(_message.Message):
    __slots__ = ("functions", "server_version", "protocol_versions", "weights", "budget", "code")
    class WeightsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    FUNCTIONS_FIELD_NUMBER: _ClassVar[int]
    SERVER_VERSION_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_VERSIONS_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    BUDGET_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    functions: _containers.RepeatedCompositeFieldContainer[_function_pb2.FunctionSpec]
    server_version: str
    protocol_versions: _containers.RepeatedScalarFieldContainer[int]
    weights: _containers.ScalarMap[str, float]
    budget: str
    code: str
    def __init__(self, functions: _Optional[_Iterable[_Union[_function_pb2.FunctionSpec, _Mapping]]] = ..., server_version: _Optional[str] = ..., protocol_versions: _Optional[_Iterable[int]] = ..., weights: _Optional[_Mapping[str, float]] = ..., budget: _Optional[str] = ..., code: _Optional[str] = ...) -> None: ...
