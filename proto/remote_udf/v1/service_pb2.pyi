from remote_udf.v1 import function_pb2 as _function_pb2
from remote_udf.v1 import message_pb2 as _message_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ListFunctionsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListFunctionsResponse(_message.Message):
    __slots__ = ("functions", "server_version", "protocol_versions")
    FUNCTIONS_FIELD_NUMBER: _ClassVar[int]
    SERVER_VERSION_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_VERSIONS_FIELD_NUMBER: _ClassVar[int]
    functions: _containers.RepeatedCompositeFieldContainer[_function_pb2.FunctionSpec]
    server_version: str
    protocol_versions: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, functions: _Optional[_Iterable[_Union[_function_pb2.FunctionSpec, _Mapping]]] = ..., server_version: _Optional[str] = ..., protocol_versions: _Optional[_Iterable[int]] = ...) -> None: ...
