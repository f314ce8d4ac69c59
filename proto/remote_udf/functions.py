"""FunctionSpec: the description of a function that the server and its clients share."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeVar

import pyarrow as pa

from remote_udf.arrow import read_schema, write_schema
from remote_udf.errors import ErrorCode, ErrorKind, ProtocolViolation, StreamError
from remote_udf.table_arguments import ProcessSignature
from remote_udf.types import accepts, spelled
from remote_udf.v1 import function_pb2 as pb

__all__ = ["VALUE", "Execution", "FunctionKind", "FunctionSpec", "NullCall", "Parameter"]

VALUE = "value"
"""Name of the only column of a result."""
ACCUMULATOR = "accumulator"


class FunctionKind(StrEnum):
    """What a function takes and returns."""

    SCALAR = "scalar"
    AGGREGATE = "aggregate"
    PROCESS = "process"


class Execution(StrEnum):
    """How the server runs a function. Aggregate functions are vectorized, because they get whole bundles."""

    ASYNC_ROWS = "async-rows"
    THREADED_ROWS = "threaded-rows"
    VECTORIZED = "vectorized"
    BATCHED = "batched"

    @property
    def by_batch(self) -> bool:
        """Whether one call of the function has many rows."""
        return self in (Execution.VECTORIZED, Execution.BATCHED)


class NullCall(StrEnum):
    """Whether a function is called for a row with a null argument."""

    CALL = "call"
    SKIP = "skip"


@dataclass(frozen=True)
class Parameter:
    """A parameter. Its `type` is a dense union if it takes one of several types."""

    name: str
    type: pa.DataType


@dataclass(frozen=True)
class FunctionSpec:
    """Name, version and types of a function, without its code. It is picklable and the same on both ends.

    Only aggregate functions have `accumulator` and the `supports_...` fields; their parameters are those of a row, and
    their result is the value of a key. Only process table functions have `process`; their parameters are all arguments
    (a table is the struct of its rows, or null), and their result is the struct of their own columns. `owner` names
    the people who answer questions about the function, or is empty. The result of a scalar function that
    `returns_rows` is an array of structs, whose elements are rows. A client that does not know the flag gets the array.
    """

    name: str
    version: str
    kind: FunctionKind
    parameters: tuple[Parameter, ...]
    result: pa.DataType
    required_parameters: int
    variadic: bool = False
    description: str = ""
    deterministic: bool = True
    nulls: NullCall = NullCall.CALL
    execution: Execution = Execution.THREADED_ROWS
    options: Mapping[str, str] = field(default_factory=dict)
    accumulator: pa.DataType | None = None
    supports_retracting: bool = False
    supports_merging: bool = False
    sees_key: bool = False
    process: ProcessSignature | None = None
    owner: str = ""
    returns_rows: bool = False

    @property
    def key(self) -> str:
        """The function as `name@version`."""
        return f"{self.name}@{self.version}"

    @property
    def signature(self) -> str:
        """The readable signature: `geocode(address string, limit bigint = ...) -> struct<...>`.

        The result of a function that returns rows is `rows<...>`.
        """
        shown = []
        for index, parameter in enumerate(self.parameters):
            last = index == len(self.parameters) - 1
            star = "*" if self.variadic and last else ""
            default = " = ..." if index >= self.required_parameters and not star else ""
            is_table = self.process is not None and self.process.table(parameter.name) is not None
            type_ = "table" if is_table else spelled(parameter.type)
            shown.append(f"{star}{parameter.name} {type_}{default}")
        result = spelled(self.result)
        if self.returns_rows:
            result = spelled(self.result.value_type).replace("struct", "rows", 1)
        return f"{self.name}({', '.join(shown)}) -> {result}"

    @property
    def fingerprint(self) -> str:
        """A hash of everything that determines which calls are valid and what they return."""
        facts = [
            self.name, self.version, self.kind, [[p.name, spelled(p.type)] for p in self.parameters],
            spelled(self.result), self.required_parameters, self.variadic, self.nulls,
        ]  # fmt: skip
        if self.accumulator is not None:
            facts += [spelled(self.accumulator), self.supports_retracting, self.supports_merging]
        if self.process is not None:
            facts.append(self.process.to_proto().SerializeToString(deterministic=True).hex())
        return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]

    def parameter(self, position: int) -> Parameter:
        """Return the parameter of the argument at `position`. The last one of a variadic function repeats."""
        return self.parameters[min(position, len(self.parameters) - 1)]

    def check_count(self, count: int) -> None:
        """Raises StreamError ARGUMENT_COUNT, with the signature, if the number of arguments is wrong."""
        most = len(self.parameters)
        if count < self.required_parameters or (count > most and not self.variadic):
            wanted = (
                f"at least {self.required_parameters}" if self.variadic
                else str(most) if most == self.required_parameters
                else f"{self.required_parameters} to {most}"
            )  # fmt: skip
            raise StreamError(
                ErrorKind.PROTOCOL, ErrorCode.ARGUMENT_COUNT,
                f"function {self.key} takes {wanted} arguments, got {count}: {self.signature}",
            )  # fmt: skip

    def check_arguments(self, arguments: Sequence[pa.DataType]) -> list[pa.DataType]:
        """Return the type to which each argument is converted.

        Raises StreamError ARGUMENT_COUNT or ARGUMENT_TYPE, which names the parameter and the expected and actual type.
        """
        self.check_count(len(arguments))
        targets = []
        for position, argument in enumerate(arguments):
            parameter = self.parameter(position)
            target = accepts(parameter.type, argument)
            if target is None:
                raise StreamError(
                    ErrorKind.PROTOCOL, ErrorCode.ARGUMENT_TYPE,
                    f"function {self.key}, parameter {parameter.name!r}: expected {spelled(parameter.type)}, "
                    f"found {spelled(argument)}; cast the argument: {self.signature}",
                )  # fmt: skip
            targets.append(target)
        return targets

    def to_proto(self) -> pb.FunctionSpec:
        return pb.FunctionSpec(
            **{name: getattr(self, name) for name in _PLAIN},
            kind=_KINDS[self.kind],
            nulls=_NULLS[self.nulls],
            execution=_EXECUTIONS[self.execution],
            parameters=write_schema(pa.schema([pa.field(p.name, p.type) for p in self.parameters])),
            result=write_schema(pa.schema([pa.field(VALUE, self.result)])),
            options=dict(self.options),
            fingerprint=self.fingerprint,
            accumulator=write_schema(pa.schema([pa.field(ACCUMULATOR, self.accumulator)])) if self.accumulator else b"",
            process=self.process.to_proto() if self.process is not None else None,
        )

    @classmethod
    def from_proto(cls, message: pb.FunctionSpec) -> "FunctionSpec":
        """Read a spec. Raises ProtocolViolation for an invalid schema or an enum value of a newer server."""
        result = read_schema(message.result).field(0).type
        if message.returns_rows and not (pa.types.is_list(result) and pa.types.is_struct(result.value_type)):
            raise ProtocolViolation(f"function {message.name} returns rows, but its result is {spelled(result)}")
        return cls(
            **{name: getattr(message, name) for name in _PLAIN},
            kind=_known(_KINDS, message.kind, "kind"),
            parameters=tuple(Parameter(field.name, field.type) for field in read_schema(message.parameters)),
            result=result,
            nulls=_known(_NULLS, message.nulls, "null call"),
            execution=_known(_EXECUTIONS, message.execution, "execution"),
            options=dict(message.options),
            accumulator=read_schema(message.accumulator).field(0).type if message.accumulator else None,
            process=ProcessSignature.from_proto(message.process) if message.HasField("process") else None,
        )


_PLAIN = (
    "name", "version", "description", "deterministic", "required_parameters", "variadic", "supports_retracting",
    "supports_merging", "sees_key", "owner", "returns_rows",
)  # fmt: skip
"""The fields that are the same in the message."""
_KINDS = {
    FunctionKind.SCALAR: pb.FUNCTION_KIND_SCALAR,
    FunctionKind.AGGREGATE: pb.FUNCTION_KIND_AGGREGATE,
    FunctionKind.PROCESS: pb.FUNCTION_KIND_PROCESS,
}
_NULLS = {NullCall.CALL: pb.NULL_CALL_CALL, NullCall.SKIP: pb.NULL_CALL_SKIP}
_EXECUTIONS = {
    Execution.ASYNC_ROWS: pb.EXECUTION_ASYNC_ROWS,
    Execution.THREADED_ROWS: pb.EXECUTION_THREADED_ROWS,
    Execution.VECTORIZED: pb.EXECUTION_VECTORIZED,
    Execution.BATCHED: pb.EXECUTION_BATCHED,
}


K = TypeVar("K")
V = TypeVar("V")


def _known(table: Mapping[K, V], wanted: V, what: str) -> K:
    for key, value in table.items():
        if value == wanted:
            return key
    raise ProtocolViolation(f"{what} {wanted} is unknown to this version")
